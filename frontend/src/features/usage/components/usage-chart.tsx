import { Bar, BarChart, CartesianGrid, ResponsiveContainer, Tooltip, XAxis, YAxis } from "recharts";
import { formatCompact, formatDay, formatMoney } from "@/lib/format";
import type { ChartData, Metric } from "../chart-data";
import { colorOf } from "../series-colors";
import { ChartTooltip } from "./chart-tooltip";

interface UsageChartProps {
  data: ChartData;
  metric: Metric;
}

const HEIGHT = 260;
const TICK = { fontSize: 11, fill: "var(--mantine-color-dimmed)" };

export function UsageChart({ data, metric }: UsageChartProps) {
  const format = metric === "cost" ? formatMoney : formatCompact;
  return (
    <div role="img" aria-label={`Usage by day and adapter: ${metric}`} style={{ height: HEIGHT }}>
      <ResponsiveContainer width="100%" height="100%">
        <BarChart data={data.days} margin={{ top: 8, right: 4, bottom: 0, left: 0 }}>
          <CartesianGrid vertical={false} stroke="var(--gh-line)" />
          <XAxis
            dataKey="day"
            tickFormatter={formatDay}
            tick={TICK}
            tickLine={false}
            axisLine={{ stroke: "var(--gh-line)" }}
            minTickGap={24}
          />
          <YAxis tickFormatter={format} tick={TICK} tickLine={false} axisLine={false} width={56} />
          <Tooltip
            cursor={{ fill: "var(--gh-hover)" }}
            content={<ChartTooltip format={format} />}
            isAnimationActive={false}
          />
          {data.series.map((name, index) => (
            <Bar
              key={name}
              name={name}
              dataKey={(row: ChartData["days"][number]) => row.bySeries[name] ?? 0}
              stackId="day"
              fill={colorOf(index)}
              maxBarSize={36}
              isAnimationActive={false}
            />
          ))}
        </BarChart>
      </ResponsiveContainer>
    </div>
  );
}
