import type { UsageSummary, UsageTotals } from "@/lib/types";

export type Metric = "tokens" | "requests" | "cost";

/** Sums of one day and one adapter ("" is the base model). */
export type ChartRow = UsageSummary["by_day_and_adapter"][number];

export interface ChartDay {
  day: string;
  bySeries: Record<string, number>;
}

export interface ChartData {
  /** Largest first, so that colours and the stack's foot stay with what matters. */
  series: string[];
  days: ChartDay[];
}

export const BASE_NAME = "base model";
export const OTHERS_NAME = "others";
const MAX_SERIES = 8;

export function metricOf(row: UsageTotals, metric: Metric): number {
  if (metric === "requests") return row.num_requests;
  return metric === "cost" ? Number(row.cost) : row.prompt_tokens + row.completion_tokens;
}

function nameOf({ adapter }: ChartRow): string {
  return adapter === "" ? BASE_NAME : adapter;
}

function largestFirst(rows: ChartRow[], metric: Metric): string[] {
  const totals = new Map<string, number>();
  for (const row of rows) {
    totals.set(nameOf(row), (totals.get(nameOf(row)) ?? 0) + metricOf(row, metric));
  }
  return [...totals].sort((a, b) => b[1] - a[1]).map(([name]) => name);
}

/** Sums per day and series; beyond eight adapters the small ones are one series. */
export function chartData(rows: ChartRow[], days: string[], metric: Metric): ChartData {
  const names = largestFirst(rows, metric);
  const shown = names.length > MAX_SERIES ? names.slice(0, MAX_SERIES - 1) : names;
  const byDay = new Map(days.map((day): [string, ChartDay] => [day, { day, bySeries: {} }]));
  for (const row of rows) {
    const sums = byDay.get(row.day)?.bySeries;
    if (!sums) continue;
    const name = shown.includes(nameOf(row)) ? nameOf(row) : OTHERS_NAME;
    sums[name] = (sums[name] ?? 0) + metricOf(row, metric);
  }
  const series = shown.length < names.length ? [...shown, OTHERS_NAME] : shown;
  return { series, days: [...byDay.values()] };
}
