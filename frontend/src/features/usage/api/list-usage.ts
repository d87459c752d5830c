import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { PAGE_SIZE } from "@/config/app";
import { api, unwrap } from "@/lib/api";
import { apiPeriod, type UsagePeriod } from "../period";

export function usageKey(tenant: string) {
  return [tenant, "usage"] as const;
}

export function usageQuery(tenant: string, period: UsagePeriod, page: number) {
  return queryOptions({
    queryKey: [...usageKey(tenant), "rows", period, page],
    queryFn: () =>
      unwrap(
        api.GET("/api/tenants/{tenant}/usage/", {
          params: {
            path: { tenant },
            query: { ...apiPeriod(period), limit: PAGE_SIZE, offset: (page - 1) * PAGE_SIZE },
          },
        }),
      ),
    placeholderData: keepPreviousData,
  });
}
