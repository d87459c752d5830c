import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { adaptersKey } from "./list-adapters";

const MAX_ALIASES_LISTED = 100;

export function aliasesKey(tenant: string, adapter: string) {
  return [...adaptersKey(tenant), "aliases", adapter] as const;
}

export function aliasesQuery(tenant: string, adapter: string) {
  return queryOptions({
    queryKey: aliasesKey(tenant, adapter),
    queryFn: () =>
      unwrap(
        api.GET("/api/tenants/{tenant}/aliases/", {
          params: { path: { tenant }, query: { adapter, limit: MAX_ALIASES_LISTED } },
        }),
      ),
  });
}
