import { Group, Paper, SegmentedControl, Text, Title } from "@mantine/core";
import { type ChartRow, chartData, type Metric } from "../chart-data";
import { daysOf, type UsagePeriod } from "../period";
import { colorOf } from "../series-colors";
import { UsageChart } from "./usage-chart";

const METRICS: { value: Metric; label: string }[] = [
  { value: "tokens", label: "Tokens" },
  { value: "requests", label: "Requests" },
  { value: "cost", label: "Cost" },
];

interface ChartCardProps {
  rows: ChartRow[];
  period: UsagePeriod;
  metric: Metric;
  onMetric: (metric: Metric) => void;
}

export function ChartCard({ rows, period, metric, onMetric }: ChartCardProps) {
  const data = chartData(rows, daysOf(period), metric);
  return (
    <Paper p="md">
      <Group justify="space-between" mb="sm">
        <Title order={2}>By day and adapter</Title>
        <SegmentedControl<Metric>
          size="xs"
          aria-label="What the chart shows"
          data={METRICS}
          value={metric}
          onChange={onMetric}
        />
      </Group>
      {data.series.length === 0 ? (
        <Text c="dimmed" ta="center" py={80}>
          Nothing was used in this period.
        </Text>
      ) : (
        <>
          <UsageChart data={data} metric={metric} />
          <Group component="ul" gap="md" mt="xs" p={0} m={0} aria-label="Adapters in the chart">
            {data.series.map((name, index) => (
              <Group component="li" key={name} gap={6} style={{ listStyle: "none" }}>
                <span
                  style={{ width: 8, height: 8, borderRadius: 2, background: colorOf(index) }}
                />
                <Text fz="xs" c="dimmed">
                  {name}
                </Text>
              </Group>
            ))}
          </Group>
        </>
      )}
    </Paper>
  );
}
