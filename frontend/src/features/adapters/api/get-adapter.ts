import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { adaptersKey } from "./list-adapters";

export function adapterQuery(tenant: string, name: string) {
  return queryOptions({
    queryKey: [...adaptersKey(tenant), "one", name],
    queryFn: () =>
      unwrap(
        api.GET("/api/tenants/{tenant}/adapters/{name}/", {
          params: { path: { tenant, name } },
        }),
      ),
  });
}
