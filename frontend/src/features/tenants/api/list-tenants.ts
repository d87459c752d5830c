import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";

const MAX_TENANTS_LISTED = 500;

/** The caller's tenants; an operator's answer holds all of them. */
export function tenantsQuery() {
  return queryOptions({
    queryKey: ["@session", "tenants"],
    queryFn: () =>
      unwrap(api.GET("/api/tenants/", { params: { query: { limit: MAX_TENANTS_LISTED } } })),
    staleTime: 60_000,
  });
}
