import { FileButton, Button, Group, Stack, Text } from "@mantine/core";
import { IconFileText } from "@tabler/icons-react";
import { ErrorNotice } from "@/components/error-notice";
import { notifyDone } from "@/lib/notify";
import type { EvalSet } from "@/lib/types";
import { useReplaceEvalSet } from "../api/replace-eval-set";

interface EvalSetLineProps {
  tenant: string;
  name: string;
  /** null: there is none. */
  evalSet: EvalSet | null;
  canChange: boolean;
}

function described({ num_examples, num_golden, is_default, created_by }: EvalSet): string {
  const examples = `${num_examples} example${num_examples === 1 ? "" : "s"}`;
  const whose = is_default ? "the operator’s default" : `uploaded by ${created_by}`;
  return `${examples}, ${num_golden} golden, ${whose}`;
}

/** What versions of this adapter are measured by, and its replacement by a file. */
export function EvalSetLine({ tenant, name, evalSet, canChange }: EvalSetLineProps) {
  const replace = useReplaceEvalSet(tenant, name);
  function take(file: File | null): void {
    if (file === null) return;
    replace.mutate(file, {
      onSuccess: (saved) => notifyDone(`Eval set saved: ${saved.num_examples} examples`),
    });
  }
  return (
    <Stack gap="xs">
      <Group justify="space-between" gap="xs">
        <Text fz="sm" c={evalSet ? undefined : "dimmed"} flex={1} miw={220}>
          {evalSet
            ? `Eval set: ${described(evalSet)}.`
            : "No eval set yet. Upload JSON Lines: conversations that end with the right answer, or prompts with their completions."}
        </Text>
        {canChange && (
          <FileButton accept=".jsonl,.ndjson,.json,.txt" onChange={take}>
            {(props) => (
              <Button
                {...props}
                size="compact-sm"
                variant="default"
                leftSection={<IconFileText size={14} />}
                loading={replace.isPending}
              >
                {evalSet && !evalSet.is_default ? "Replace eval set" : "Upload eval set"}
              </Button>
            )}
          </FileButton>
        )}
      </Group>
      {replace.error && <ErrorNotice title="The eval set was not taken" error={replace.error} />}
    </Stack>
  );
}
