import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import type { UsageSummary } from "@/lib/types";
import { apiPeriod, isoDay } from "../period";
import { usageKey } from "./list-usage";

const CLOSED_STALE_MS = 600_000;

export type DayByAdapter = UsageSummary["by_adapter"][number] & { day: string };

/**
 * One day's sums per adapter; the summary of a longer period has no sums per day and adapter. Days that are over
 * are kept out of the reach of events, so that a request that ends refreshes today only.
 */
export function dayQuery(tenant: string, day: string) {
  const isOver = day < isoDay(Date.now());
  return queryOptions({
    queryKey: isOver ? [tenant, "usage-closed-day", day] : [...usageKey(tenant), "day", day],
    queryFn: async (): Promise<DayByAdapter[]> => {
      const query = apiPeriod({ from: day, to: day });
      const params = { path: { tenant }, query };
      const summary = await unwrap(api.GET("/api/tenants/{tenant}/usage/summary/", { params }));
      return summary.by_adapter.map((row) => ({ ...row, day }));
    },
    staleTime: isOver ? CLOSED_STALE_MS : undefined,
  });
}
