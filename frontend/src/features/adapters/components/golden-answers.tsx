import { Box, Text, Title } from "@mantine/core";
import type { Golden } from "@/lib/types";
import { contenderLabel } from "../losses";
import classes from "./golden-answers.module.css";

const ORDER = ["base", "base_with_prompt", "adapter"] as const;

function Answer({ name, text }: { name: string; text: string }) {
  return (
    <div>
      <Text component="dt" c="dimmed" fz="xs" fw={500} mb={2}>
        {name}
      </Text>
      {/* Whoever reads with the keyboard scrolls it too. */}
      <Text component="dd" fz="sm" className={classes.text} tabIndex={0}>
        {text === "" ? "(nothing)" : text}
      </Text>
    </div>
  );
}

/** The same prompts, answered by all contenders side by side. */
export function GoldenAnswers({ golden }: { golden: Golden[] }) {
  if (golden.length === 0) return null;
  return (
    <Box>
      <Title order={3} mb={8}>
        Golden prompts
      </Title>
      <ul className={classes.list} aria-label="Golden prompts">
        {golden.map((one) => (
          <li key={one.line} className={classes.one}>
            <div className={classes.prompt}>
              <Text fz="sm" className={classes.text} tabIndex={0}>
                {one.prompt}
              </Text>
            </div>
            <dl className={classes.answers}>
              <Answer name="Expected" text={one.expected} />
              {ORDER.map((name) => {
                const text = one.answers[name];
                return (
                  text !== undefined && (
                    <Answer key={name} name={contenderLabel(name)} text={text} />
                  )
                );
              })}
            </dl>
          </li>
        ))}
      </ul>
    </Box>
  );
}
