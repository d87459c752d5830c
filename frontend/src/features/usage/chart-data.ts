import type { UsageDay } from "@/lib/types";

export type Metric = "tokens" | "requests" | "cost";

export interface ChartDay {
  day: string;
  byAdapter: Record<string, number>;
}

export interface ChartData {
  /** Largest first, so that colours and the stack's foot stay with what matters. */
  adapters: string[];
  days: ChartDay[];
}

export const BASE_NAME = "base model";
export const OTHERS_NAME = "others";
const MAX_SERIES = 8;

export function metricOf(row: UsageDay, metric: Metric): number {
  if (metric === "requests") return row.requests;
  return metric === "cost" ? Number(row.cost) : row.prompt_tokens + row.completion_tokens;
}

function nameOf(row: UsageDay): string {
  return row.adapter === null || row.adapter === "" ? BASE_NAME : row.adapter;
}

function largestFirst(rows: UsageDay[], metric: Metric): string[] {
  const totals = new Map<string, number>();
  for (const row of rows) {
    totals.set(nameOf(row), (totals.get(nameOf(row)) ?? 0) + metricOf(row, metric));
  }
  return [...totals].sort((a, b) => b[1] - a[1]).map(([name]) => name);
}

/** Sums per day and adapter; beyond eight adapters the small ones are one series. */
export function chartData(rows: UsageDay[], days: string[], metric: Metric): ChartData {
  const names = largestFirst(rows, metric);
  const shown = names.length > MAX_SERIES ? names.slice(0, MAX_SERIES - 1) : names;
  const byDay = new Map(days.map((day): [string, ChartDay] => [day, { day, byAdapter: {} }]));
  for (const row of rows) {
    const sums = byDay.get(row.date)?.byAdapter;
    if (!sums) continue;
    const name = shown.includes(nameOf(row)) ? nameOf(row) : OTHERS_NAME;
    sums[name] = (sums[name] ?? 0) + metricOf(row, metric);
  }
  const adapters = shown.length < names.length ? [...shown, OTHERS_NAME] : shown;
  return { adapters, days: [...byDay.values()] };
}
