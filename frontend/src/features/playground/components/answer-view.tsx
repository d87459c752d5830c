import { Alert, Group, Text, Tooltip } from "@mantine/core";
import { IconAlertTriangle } from "@tabler/icons-react";
import { shortDigest } from "@/lib/format";
import { type Answer, isRunning, timeToFirstTokenMs, tokensPerSecond } from "../answer";
import classes from "./playground.module.css";

const ENDED: Record<string, string> = { length: "cut at max tokens", stop: "complete" };

function Figures({ answer }: { answer: Answer }) {
  const firstMs = timeToFirstTokenMs(answer);
  const speed = tokensPerSecond(answer);
  const cached = answer.usage?.prompt_tokens_details?.cached_tokens ?? 0;
  const isCut = isRunning(answer) && answer.isCut;
  const parts = [
    firstMs === undefined ? undefined : `first token ${Math.round(firstMs)} ms`,
    speed === undefined ? undefined : `${speed.toFixed(1)} tokens/s`,
    answer.usage &&
      `${answer.usage.prompt_tokens} in${cached > 0 ? ` (${cached} cached)` : ""}, ${answer.usage.completion_tokens} out`,
    answer.status === "stopped" ? "stopped" : (ENDED[answer.finishReason ?? ""] ?? ""),
  ].filter(Boolean);
  return (
    <Text c="dimmed" fz="xs" className="tabular">
      {isCut ? "Connection lost, picking the answer up again" : parts.join(" · ")}
    </Text>
  );
}

function Served({ digest }: { digest: string }) {
  const isBase = digest === "base";
  return (
    <Tooltip label={isBase ? "No adapter" : `Served by sha256 ${digest}`}>
      <Text c="dimmed" fz="xs" ff="monospace">
        {isBase ? "base" : shortDigest(digest)}
      </Text>
    </Tooltip>
  );
}

export function AnswerView({ answer, label }: { answer: Answer; label: string }) {
  return (
    <article
      aria-label={`Answer of ${label}`}
      aria-busy={isRunning(answer)}
      className={classes.answer}
    >
      {answer.error ? (
        <Alert
          color="red"
          role="alert"
          icon={<IconAlertTriangle size={18} />}
          title={answer.error.code}
          mb={answer.text === "" ? 0 : "xs"}
        >
          {answer.error.message}
        </Alert>
      ) : null}
      {(answer.text !== "" || !answer.error) && (
        <div className={classes.text}>
          {answer.text}
          {isRunning(answer) && <span className={classes.cursor} aria-label="Writing" />}
        </div>
      )}
      <Group justify="space-between" gap="xs" mih={18}>
        <Figures answer={answer} />
        {answer.digest !== undefined && <Served digest={answer.digest} />}
      </Group>
    </article>
  );
}
