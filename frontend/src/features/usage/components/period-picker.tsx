import { Button, Group, TextInput } from "@mantine/core";
import { lastDays, type UsagePeriod } from "../period";

const PRESETS = [7, 14, 30];

interface PeriodPickerProps {
  period: UsagePeriod;
  onChange: (period: UsagePeriod) => void;
}

export function PeriodPicker({ period, onChange }: PeriodPickerProps) {
  function isCurrent(numDays: number): boolean {
    const { from, to } = lastDays(numDays);
    return from === period.from && to === period.to;
  }
  return (
    <Group gap="xs" role="group" aria-label="Period">
      <Button.Group>
        {PRESETS.map((numDays) => (
          <Button
            key={numDays}
            variant="default"
            aria-pressed={isCurrent(numDays)}
            fw={isCurrent(numDays) ? 650 : 400}
            onClick={() => onChange(lastDays(numDays))}
          >
            {numDays} days
          </Button>
        ))}
      </Button.Group>
      <TextInput
        type="date"
        aria-label="From (UTC)"
        value={period.from}
        max={period.to}
        onChange={({ currentTarget: { value } }) => value && onChange({ ...period, from: value })}
      />
      <TextInput
        type="date"
        aria-label="To (UTC)"
        value={period.to}
        min={period.from}
        onChange={({ currentTarget: { value } }) => value && onChange({ ...period, to: value })}
      />
    </Group>
  );
}
