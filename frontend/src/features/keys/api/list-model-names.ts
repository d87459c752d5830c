import { queryOptions } from "@tanstack/react-query";
import { MAX_ADAPTERS_LISTED } from "@/config/app";
import { api, unwrap } from "@/lib/api";

/** Names that a key may be held to, the base model's first. Below "adapters", so that their events make it stale. */
export function modelNamesQuery(tenant: string) {
  return queryOptions({
    queryKey: [tenant, "adapters", "names"],
    queryFn: async () => {
      const [session, adapters] = await Promise.all([
        unwrap(api.GET("/api/session")),
        unwrap(
          api.GET("/api/tenants/{tenant}/adapters/", {
            params: { path: { tenant }, query: { limit: MAX_ADAPTERS_LISTED } },
          }),
        ),
      ]);
      return [session.base_model, ...adapters.results.map(({ name }) => name)];
    },
  });
}
