import { Group, Paper, Text } from "@mantine/core";
import type { TooltipContentProps } from "recharts";
import { formatDay } from "@/lib/format";

type ChartTooltipProps = Partial<TooltipContentProps> & { format: (value: number) => string };

/** Recharts fills in what is under the pointer. */
export function ChartTooltip({ active, payload, label, format }: ChartTooltipProps) {
  const shown = (payload ?? []).filter((entry) => Number(entry.value) > 0);
  if (!active || shown.length === 0) return null;
  return (
    <Paper px="sm" py={8} shadow="md">
      <Text fz="xs" c="dimmed" mb={4}>
        {formatDay(String(label))}
      </Text>
      {shown.toReversed().map((entry) => (
        <Group key={String(entry.name)} gap={8} wrap="nowrap">
          <span style={{ width: 8, height: 8, borderRadius: 2, background: entry.color }} />
          <Text fz="xs" flex={1}>
            {entry.name}
          </Text>
          <Text fz="xs" fw={600} className="tabular">
            {format(Number(entry.value))}
          </Text>
        </Group>
      ))}
    </Paper>
  );
}
