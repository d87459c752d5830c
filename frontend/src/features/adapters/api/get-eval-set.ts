import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import type { components } from "@/lib/schema.gen";
import { adaptersKey } from "./list-adapters";

type EvalSet = components["schemas"]["EvalSet"];

/** null: the adapter has none, and the operator no default. */
export function evalSetQuery(tenant: string, name: string) {
  return queryOptions({
    queryKey: [...adaptersKey(tenant), "eval-set", name],
    queryFn: async () => {
      // 204, without a body, when there is none.
      const found = await unwrap<EvalSet | undefined>(
        api.GET("/api/tenants/{tenant}/adapters/{name}/eval-set/", {
          params: { path: { tenant, name } },
        }),
      );
      return found ?? null;
    },
  });
}
