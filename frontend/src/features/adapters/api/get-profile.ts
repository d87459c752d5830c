import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { versionsKey } from "./list-versions";

export function profileQuery(tenant: string, name: string, number: number) {
  return queryOptions({
    queryKey: [...versionsKey(tenant, name), number, "profile"],
    queryFn: () =>
      unwrap(
        api.GET("/api/tenants/{tenant}/adapters/{name}/versions/{number}/profile/", {
          params: { path: { tenant, name, number } },
        }),
      ),
  });
}
