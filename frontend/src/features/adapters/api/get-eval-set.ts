import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { isNotFound } from "@/lib/errors";
import { adaptersKey } from "./list-adapters";

/** null: the adapter has none, and the operator no default. */
export function evalSetQuery(tenant: string, name: string) {
  return queryOptions({
    queryKey: [...adaptersKey(tenant), "eval-set", name],
    queryFn: async () => {
      try {
        return await unwrap(
          api.GET("/api/tenants/{tenant}/adapters/{name}/eval-set/", {
            params: { path: { tenant, name } },
          }),
        );
      } catch (error) {
        if (isNotFound(error)) return null;
        throw error;
      }
    },
  });
}
