import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";

/** The tenant with its plan, this month's usage, and what the caller may do here. */
export function tenantQuery(tenant: string) {
  return queryOptions({
    queryKey: [tenant, "usage", "tenant"],
    queryFn: () => unwrap(api.GET("/api/tenants/{tenant}/", { params: { path: { tenant } } })),
    staleTime: 30_000,
  });
}
