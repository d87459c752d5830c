import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { PAGE_SIZE } from "@/config/app";
import { api, unwrap } from "@/lib/api";

export function auditQuery(tenant: string, page: number) {
  return queryOptions({
    queryKey: [tenant, "audit", page],
    queryFn: () =>
      unwrap(
        api.GET("/api/tenants/{tenant}/audit/", {
          params: {
            path: { tenant },
            query: { limit: PAGE_SIZE, offset: (page - 1) * PAGE_SIZE },
          },
        }),
      ),
    placeholderData: keepPreviousData,
  });
}
