import { CONFIG_FILE, TEMPLATE_FILES, WEIGHTS_FILE } from "@/config/app";
import type { Folder } from "@/lib/dropped";
import type { VersionFiles } from "./pack";

/** What has been chosen so far; one of the pair may still be missing. templates: beside the pair. */
export interface Picked {
  config?: File;
  weights?: File;
  templates?: File[];
  archive?: File;
}

const ARCHIVE = /\.(zip|tar|tar\.gz|tgz)$/;
const PICKLED = /\.(bin|pt|pth|pkl|pickle|ckpt)$/i;

function refusal(file: File): string {
  if (PICKLED.test(file.name)) {
    return `${file.name}: pickled weights can run code and are not taken. Save with safe_serialization=True to get ${WEIGHTS_FILE}.`;
  }
  return `${file.name}: expected ${CONFIG_FILE} and ${WEIGHTS_FILE}, or one .zip, .tar or .tar.gz of both.`;
}

function withTemplate({ config, weights, templates = [] }: Picked, file: File): Picked {
  const others = templates.filter((other) => other.name !== file.name);
  return { config, weights, templates: [...others, file] };
}

/** Adds files to what was picked; an archive replaces the pair and the pair replaces it. */
export function pickFiles(picked: Picked, files: File[]): { picked: Picked; refused: string[] } {
  let next = picked;
  const refused: string[] = [];
  for (const file of files) {
    const name = file.name.toLowerCase();
    if (file.size === 0) refused.push(`${file.name}: the file is empty.`);
    else if (ARCHIVE.test(name)) next = { archive: file };
    else if (TEMPLATE_FILES.includes(file.name)) next = withTemplate(next, file);
    else if (name.endsWith(".safetensors")) next = { ...next, archive: undefined, weights: file };
    else if (name.endsWith(".json")) next = { ...next, archive: undefined, config: file };
    else refused.push(refusal(file));
  }
  return { picked: next, refused };
}

/** Of a folder as PEFT saves it, the two files, and where its chat template may be; nothing else. */
export function pickFolder(
  picked: Picked,
  { name, files }: Folder,
): { picked: Picked; refused: string[] } {
  const pair = files.filter((file) => file.name === CONFIG_FILE || file.name === WEIGHTS_FILE);
  const templates = files.filter((file) => TEMPLATE_FILES.includes(file.name) && file.size > 0);
  if (pair.length > 0) return pickFiles({ ...picked, templates: [] }, [...pair, ...templates]);
  const refused = `${name}: the folder holds neither ${CONFIG_FILE} nor ${WEIGHTS_FILE}.`;
  return { picked, refused: [refused] };
}

/** The files as the server takes them, or undefined while one is missing. */
export function completeFiles(picked: Picked): VersionFiles | undefined {
  const { config, weights, archive, templates = [] } = picked;
  if (archive) return { kind: "archive", archive };
  return config && weights ? { kind: "pair", config, weights, templates } : undefined;
}
