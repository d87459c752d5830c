import { queryOptions } from "@tanstack/react-query";
import { MAX_ADAPTERS_LISTED } from "@/config/app";
import { api, unwrap } from "@/lib/api";

export function adaptersKey(tenant: string) {
  return [tenant, "adapters"] as const;
}

export function adaptersQuery(tenant: string) {
  return queryOptions({
    queryKey: [...adaptersKey(tenant), "list"],
    queryFn: () =>
      unwrap(
        api.GET("/api/tenants/{tenant}/adapters/", {
          params: { path: { tenant }, query: { limit: MAX_ADAPTERS_LISTED } },
        }),
      ),
  });
}
