export interface Folder {
  name: string;
  files: File[];
}

/** What a person dropped: the browser hands a folder as one entry, which is opened here. */
export interface Dropped {
  files: File[];
  folders: Folder[];
}

function fileOf(entry: FileSystemFileEntry): Promise<File> {
  return new Promise((resolve, reject) => entry.file(resolve, reject));
}

async function entriesOf(folder: FileSystemDirectoryEntry): Promise<FileSystemEntry[]> {
  const reader = folder.createReader();
  const found: FileSystemEntry[] = [];
  // A reader hands out a hundred at a time.
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) =>
      reader.readEntries(resolve, reject),
    );
    if (some.length === 0) return found;
    found.push(...some);
  }
}

const isFile = (entry: FileSystemEntry): entry is FileSystemFileEntry => entry.isFile;
const isFolder = (entry: FileSystemEntry): entry is FileSystemDirectoryEntry => entry.isDirectory;

/** The files right in it; folders in folders are others' (checkpoints, most often). */
async function open(folder: FileSystemDirectoryEntry): Promise<Folder> {
  const entries = await entriesOf(folder);
  return { name: folder.name, files: await Promise.all(entries.filter(isFile).map(fileOf)) };
}

/** Reads the event before its first await: afterwards the browser has emptied it. */
export async function readDropped(data: DataTransfer): Promise<Dropped> {
  const folders = [...data.items]
    .map((item) => item.webkitGetAsEntry())
    .filter((entry) => entry !== null)
    .filter(isFolder);
  const names = new Set(folders.map((folder) => folder.name));
  // A folder stands among the files too, as something that cannot be read.
  const files = [...data.files].filter((file) => !names.has(file.name));
  return { files, folders: await Promise.all(folders.map(open)) };
}
