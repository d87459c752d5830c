import { type DragEvent, type ReactNode, useState } from "react";
import classes from "./dropzone.module.css";

interface DropzoneProps {
  label: string;
  accept: string;
  onFiles: (files: File[]) => void;
  children: ReactNode;
}

/** A native file input that also takes what is dropped on its label, so keyboard and readers just work. */
export function Dropzone({ label, accept, onFiles, children }: DropzoneProps) {
  const [isOver, setIsOver] = useState(false);
  function onDrop(event: DragEvent): void {
    event.preventDefault();
    setIsOver(false);
    onFiles([...event.dataTransfer.files]);
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
      onDrop={onDrop}
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
