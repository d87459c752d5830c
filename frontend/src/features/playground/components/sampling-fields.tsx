import { Group, NumberInput, Paper, Textarea } from "@mantine/core";
import type { Sampling } from "../use-duel";

interface SamplingFieldsProps {
  sampling: Sampling;
  onChange: (sampling: Sampling) => void;
}

const MAX_MAX_TOKENS = 8192;

export function SamplingFields({ sampling, onChange }: SamplingFieldsProps) {
  return (
    <Paper p="md" component="section" aria-label="Sampling">
      <Group align="flex-start" gap="md">
        <NumberInput
          label="Temperature"
          description="0 is greedy"
          w={120}
          min={0}
          max={2}
          step={0.1}
          decimalScale={2}
          clampBehavior="strict"
          value={sampling.temperature}
          onChange={(value) => onChange({ ...sampling, temperature: Number(value) })}
        />
        <NumberInput
          label="Max tokens"
          description="Of each answer"
          w={120}
          min={1}
          max={MAX_MAX_TOKENS}
          allowDecimal={false}
          value={sampling.maxTokens}
          onChange={(value) => onChange({ ...sampling, maxTokens: Math.max(1, Number(value)) })}
        />
        <Textarea
          label="System prompt"
          description="Sent first to both; empty leaves a version’s own"
          flex={1}
          miw={220}
          autosize
          minRows={1}
          maxRows={6}
          value={sampling.system}
          onChange={(event) => onChange({ ...sampling, system: event.currentTarget.value })}
        />
      </Group>
    </Paper>
  );
}
