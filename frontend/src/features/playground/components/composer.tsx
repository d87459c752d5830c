import { Button, Group, Kbd, Text, Textarea } from "@mantine/core";
import { IconArrowUp, IconPlayerStopFilled } from "@tabler/icons-react";
import { type KeyboardEvent, useState } from "react";
import classes from "./playground.module.css";

interface ComposerProps {
  isRunning: boolean;
  canClear: boolean;
  onSend: (prompt: string) => void;
  onStop: () => void;
  onClear: () => void;
}

export function Composer({ isRunning, canClear, onSend, onStop, onClear }: ComposerProps) {
  const [prompt, setPrompt] = useState("");
  const canSend = prompt.trim() !== "" && !isRunning;
  function send(): void {
    if (!canSend) return;
    onSend(prompt.trim());
    setPrompt("");
  }
  function onKeyDown(event: KeyboardEvent): void {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    send();
  }
  return (
    <div className={classes.composer}>
      <Textarea
        aria-label="Prompt"
        placeholder="Ask both the same thing"
        autosize
        minRows={2}
        maxRows={10}
        value={prompt}
        onChange={(event) => setPrompt(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <Group justify="space-between" mt="xs">
        <Text c="dimmed" fz="xs" visibleFrom="sm">
          <Kbd size="xs">Enter</Kbd> sends, <Kbd size="xs">Shift</Kbd> + <Kbd size="xs">Enter</Kbd>{" "}
          starts a line
        </Text>
        <Group gap="xs" ml="auto">
          {canClear && (
            <Button variant="subtle" color="gray" onClick={onClear}>
              Clear
            </Button>
          )}
          {isRunning ? (
            <Button
              variant="default"
              leftSection={<IconPlayerStopFilled size={15} />}
              onClick={onStop}
            >
              Stop
            </Button>
          ) : (
            <Button leftSection={<IconArrowUp size={16} />} disabled={!canSend} onClick={send}>
              Send
            </Button>
          )}
        </Group>
      </Group>
    </div>
  );
}
