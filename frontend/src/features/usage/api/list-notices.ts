import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";

// Three parts of two kinds, of the tenant and its keys: this many are this month's.
const LIMIT = 100;

export function noticesQuery(tenant: string) {
  return queryOptions({
    queryKey: [tenant, "notices"],
    queryFn: () =>
      unwrap(
        api.GET("/api/tenants/{tenant}/notices/", {
          params: { path: { tenant }, query: { limit: LIMIT } },
        }),
      ),
  });
}
