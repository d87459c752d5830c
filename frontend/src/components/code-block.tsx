import { CopyButton } from "./copy-button";
import classes from "./code-block.module.css";

export function CodeBlock({ code, label }: { code: string; label: string }) {
  return (
    <div className={classes.block}>
      <pre className={classes.code} tabIndex={0} aria-label={label}>
        <code>{code}</code>
      </pre>
      <div className={classes.copy}>
        <CopyButton value={code} label={`Copy ${label}`} />
      </div>
    </div>
  );
}
