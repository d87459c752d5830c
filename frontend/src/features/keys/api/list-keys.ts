import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";

const MAX_KEYS_LISTED = 500;

export function keysKey(tenant: string) {
  return [tenant, "keys"] as const;
}

export function keysQuery(tenant: string) {
  return queryOptions({
    queryKey: keysKey(tenant),
    queryFn: () =>
      unwrap(
        api.GET("/api/tenants/{tenant}/keys/", {
          params: { path: { tenant }, query: { limit: MAX_KEYS_LISTED } },
        }),
      ),
  });
}
