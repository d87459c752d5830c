import { CopyButton } from "./copy-button";
import classes from "./code-block.module.css";

interface CodeBlockProps {
  code: string;
  label: string;
  /** Prose: long lines break. */
  isWrapped?: boolean;
  /** It takes the place of what had the focus, which a keyboard would lose. */
  isFocused?: boolean;
}

export function CodeBlock(props: CodeBlockProps) {
  const { code, label, isWrapped = false, isFocused = false } = props;
  return (
    <div className={classes.block}>
      <pre
        ref={isFocused ? focus : undefined}
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

function focus(element: HTMLElement | null): void {
  element?.focus();
}
