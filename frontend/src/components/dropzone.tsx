import { type DragEvent, type ReactNode, useState } from "react";
import { type Folder, readDropped } from "@/lib/dropped";
import classes from "./dropzone.module.css";

interface DropzoneProps {
  label: string;
  accept: string;
  onFiles: (files: File[]) => void;
  onFolder: (folder: Folder) => void;
  children: ReactNode;
}

/** A native file input that also takes what is dropped on its label, so keyboard and readers just work. */
export function Dropzone({ label, accept, onFiles, onFolder, children }: DropzoneProps) {
  const [isOver, setIsOver] = useState(false);
  async function onDrop(event: DragEvent): Promise<void> {
    event.preventDefault();
    setIsOver(false);
    const { files, folders } = await readDropped(event.dataTransfer);
    if (files.length > 0) onFiles(files);
    folders.forEach(onFolder);
  }
  return (
    <label
      className={classes.zone}
      data-over={isOver}
      onDragOver={(event) => {
        event.preventDefault();
        setIsOver(true);
      }}
      onDragLeave={() => setIsOver(false)}
      onDrop={(event) => void onDrop(event)}
    >
      {children}
      <input
        className={classes.input}
        type="file"
        multiple
        accept={accept}
        aria-label={label}
        onChange={(event) => {
          onFiles([...(event.currentTarget.files ?? [])]);
          // The same file may be picked again after it was mended.
          event.currentTarget.value = "";
        }}
      />
    </label>
  );
}
