import { fireEvent, screen } from "@testing-library/react";

/** As the browser hands a dropped folder over: an entry that is read in portions. */
export function dropFolder(name: string, files: File[]): void {
  const portions = [files.map((file) => fileEntry(file)), [folderEntry("checkpoint-10", [])], []];
  const entry = {
    ...folderEntry(name, []),
    createReader: () => ({
      readEntries: (take: (e: unknown[]) => void) => take(portions.shift() ?? []),
    }),
  };
  const data = { files: [new File(["?"], name)], items: [{ webkitGetAsEntry: () => entry }] };
  fireEvent.drop(screen.getByText("Drop the adapter or its folder here, or choose files"), {
    dataTransfer: data,
  });
}

function fileEntry(file: File) {
  return {
    isFile: true,
    isDirectory: false,
    name: file.name,
    file: (take: (f: File) => void) => take(file),
  };
}

function folderEntry(name: string, files: File[]) {
  return { isFile: false, isDirectory: true, name, files };
}
