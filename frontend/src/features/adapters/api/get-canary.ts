import { queryOptions } from "@tanstack/react-query";
import { CANARY_POLL_MS } from "@/config/app";
import { api, unwrap } from "@/lib/api";
import { adaptersKey } from "./list-adapters";

/** The figures move with every request, so they are asked for again while they are looked at. */
export function canaryQuery(tenant: string, name: string) {
  return queryOptions({
    queryKey: [...adaptersKey(tenant), "canary", name],
    queryFn: () =>
      unwrap(
        api.GET("/api/tenants/{tenant}/adapters/{name}/canary/", {
          params: { path: { tenant, name } },
        }),
      ),
    refetchInterval: CANARY_POLL_MS,
  });
}
