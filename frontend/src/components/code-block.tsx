import { CopyButton } from "./copy-button";
import classes from "./code-block.module.css";

interface CodeBlockProps {
  code: string;
  label: string;
  /** Prose: long lines break. */
  isWrapped?: boolean;
}

export function CodeBlock({ code, label, isWrapped = false }: CodeBlockProps) {
  return (
    <div className={classes.block}>
      <pre
        className={classes.code}
        data-wrapped={isWrapped || undefined}
        tabIndex={0}
        aria-label={label}
      >
        <code>{code}</code>
      </pre>
      <div className={classes.copy}>
        <CopyButton value={code} label={`Copy ${label}`} />
      </div>
    </div>
  );
}
