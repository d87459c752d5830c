import { Button, Group, Modal, Stack, Text, Textarea } from "@mantine/core";
import { useState } from "react";
import { notifyError } from "@/lib/notify";
import { useBeginEvaluation } from "../api/begin-evaluation";

interface EvaluateButtonProps {
  tenant: string;
  name: string;
  number: number;
  /** What the base was told last time. */
  lastPrompt: string;
  isDisabled: boolean;
}

export function EvaluateButton(props: EvaluateButtonProps) {
  const { tenant, name, number, lastPrompt, isDisabled } = props;
  const begin = useBeginEvaluation(tenant, name, number);
  const [prompt, setPrompt] = useState<string>();
  const close = () => setPrompt(undefined);
  function run(): void {
    begin.mutate((prompt ?? "").trim(), {
      onSuccess: close,
      onError: (error) => notifyError(`Could not evaluate v${number}`, error),
    });
  }
  return (
    <>
      <Button
        size="compact-sm"
        variant="light"
        disabled={isDisabled}
        aria-label={`Evaluate v${number}`}
        onClick={() => setPrompt(lastPrompt)}
      >
        Evaluate
      </Button>
      <Modal opened={prompt !== undefined} onClose={close} title={`Evaluate v${number}`}>
        <Stack>
          <Text>
            The base, the base with a system prompt and this version are given the same examples. It
            runs beside your traffic at low priority and is not charged.
          </Text>
          <Textarea
            label="System prompt for the base"
            description="Would words alone do? Empty: the version’s own, if its profile has one."
            autosize
            minRows={3}
            maxRows={10}
            value={prompt ?? ""}
            onChange={(event) => setPrompt(event.currentTarget.value)}
          />
          <Group justify="flex-end" gap="xs">
            <Button variant="default" onClick={close}>
              Cancel
            </Button>
            <Button loading={begin.isPending} onClick={run}>
              Start
            </Button>
          </Group>
        </Stack>
      </Modal>
    </>
  );
}
