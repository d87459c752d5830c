import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { apiPeriod, type UsagePeriod } from "../period";
import { usageKey } from "./list-usage";

export function summaryQuery(tenant: string, period: UsagePeriod) {
  return queryOptions({
    queryKey: [...usageKey(tenant), "summary", period],
    queryFn: () =>
      unwrap(
        api.GET("/api/tenants/{tenant}/usage/summary/", {
          params: { path: { tenant }, query: apiPeriod(period) },
        }),
      ),
    placeholderData: keepPreviousData,
  });
}
