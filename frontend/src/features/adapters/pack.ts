import { CONFIG_FILE, WEIGHTS_FILE } from "@/config/app";
import type { Packed } from "@/lib/parted-upload";

/** Either the two files of PEFT, with what may hold a chat template, or an archive of them. */
export type VersionFiles =
  | { kind: "pair"; config: File; weights: File; templates: File[] }
  | { kind: "archive"; archive: File };

const BLOCK = 512;

/** One file to send: an archive as it is; a pair as a tar whose bytes are read only when they are sent. */
export function pack(files: VersionFiles): Packed {
  if (files.kind === "archive") {
    const { archive } = files;
    return { blob: archive, filename: archive.name, fingerprint: print(archive) };
  }
  const { config, weights, templates } = files;
  const parts = [
    ...entry(CONFIG_FILE, config),
    ...entry(WEIGHTS_FILE, weights),
    ...templates.flatMap((file) => entry(file.name, file)),
  ];
  return {
    blob: new Blob([...parts, new Uint8Array(2 * BLOCK)]),
    filename: "adapter.tar",
    fingerprint: [config, weights, ...templates].map(print).join("+"),
  };
}

function print(file: File): string {
  return `${file.name}:${String(file.size)}:${String(file.lastModified)}`;
}

function entry(name: string, file: File): BlobPart[] {
  return [header(name, file.size), file, new Uint8Array((BLOCK - (file.size % BLOCK)) % BLOCK)];
}

function header(name: string, size: number): Uint8Array<ArrayBuffer> {
  const block = new Uint8Array(BLOCK);
  const write = (text: string, at: number): void => block.set(new TextEncoder().encode(text), at);
  const octal = (value: number, digits: number): string => value.toString(8).padStart(digits, "0");
  write(name, 0);
  write("0000644\0" + "0000000\0".repeat(2), 100);
  write(`${octal(size, 11)}\0${octal(0, 11)}\0`, 124);
  write("0", 156);
  write("ustar\0" + "00", 257);
  // The checksum is of the header with blanks in its own place.
  write(" ".repeat(8), 148);
  const sum = block.reduce((total, byte) => total + byte, 0);
  write(`${octal(sum, 6)}\0 `, 148);
  return block;
}
