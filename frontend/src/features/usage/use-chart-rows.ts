import { useQueries } from "@tanstack/react-query";
import type { UsageSummary } from "@/lib/types";
import { dayQuery } from "./api/get-day";
import type { ChartRow } from "./chart-data";
import type { UsagePeriod } from "./period";
import { daysOf } from "./period";

/** The longest period drawn by adapter: each of its days is one request. */
const MAX_DAYS_BY_ADAPTER = 31;

/** Rows by day and adapter; of a longer period, and until they are here, by day alone. */
export function useChartRows(
  tenant: string,
  period: UsagePeriod,
  summary: UsageSummary | undefined,
): ChartRow[] {
  const byDay = summary?.by_day ?? [];
  const isShort = daysOf(period).length <= MAX_DAYS_BY_ADAPTER;
  const used = isShort ? byDay.map(({ day }) => day) : [];
  return useQueries({
    queries: used.map((day) => dayQuery(tenant, day)),
    combine: (answers) => {
      const isComplete = answers.length > 0 && answers.every(({ data }) => data !== undefined);
      return isComplete ? answers.flatMap(({ data }) => data ?? []) : byDay;
    },
  });
}
