import { Progress, Text } from "@mantine/core";
import type { Meter } from "../meters";

const FULL_PERCENT = 100;
const NEAR_PERCENT = 80;

function colorOf(percent: number): string | undefined {
  if (percent >= FULL_PERCENT) return "red";
  return percent >= NEAR_PERCENT ? "yellow" : undefined;
}

export function PlanMeter({ meter }: { meter: Meter }) {
  const { name, used, limit, percent } = meter;
  return (
    <div>
      <Text fz="sm" className="tabular">
        <b>{used}</b> of {limit} {name}
      </Text>
      <Progress.Root size="sm" mt={6}>
        <Progress.Section
          value={percent}
          color={colorOf(percent)}
          aria-label={`${used} of ${limit} ${name}`}
        />
      </Progress.Root>
    </div>
  );
}
