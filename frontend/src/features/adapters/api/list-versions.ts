import { queryOptions } from "@tanstack/react-query";
import { isWorking } from "@/components/state-badge";
import { WORKING_POLL_MS } from "@/config/app";
import { api, unwrap } from "@/lib/api";
import { adaptersKey } from "./list-adapters";

const MAX_VERSIONS_LISTED = 200;

export function versionsKey(tenant: string, name: string) {
  return [...adaptersKey(tenant), "versions", name] as const;
}

/** Newest first. Asked again while one is being worked on, should its event get lost. */
export function versionsQuery(tenant: string, name: string) {
  return queryOptions({
    queryKey: versionsKey(tenant, name),
    queryFn: async () => {
      const page = await unwrap(
        api.GET("/api/tenants/{tenant}/adapters/{name}/versions/", {
          params: { path: { tenant, name }, query: { limit: MAX_VERSIONS_LISTED } },
        }),
      );
      return page.results.toSorted((a, b) => b.number - a.number);
    },
    refetchInterval: (query) =>
      query.state.data?.some((version) => isWorking(version.state)) ? WORKING_POLL_MS : false,
  });
}
