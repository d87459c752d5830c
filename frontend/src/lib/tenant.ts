import { queryOptions, useQuery } from "@tanstack/react-query";
import { api, unwrap } from "./api";
import type { Permission, TenantDetail } from "./types";

/**
 * The tenant with its plan, this month's usage, and what the caller may do here. Its key is not below "usage":
 * requests end many times a second, and plans and permissions do not change with them.
 */
export function tenantQuery(tenant: string) {
  return queryOptions({
    queryKey: [tenant, "detail"],
    queryFn: () => unwrap(api.GET("/api/tenants/{tenant}/", { params: { path: { tenant } } })),
    staleTime: 30_000,
  });
}

const NONE: ReadonlySet<Permission> = new Set();

function permissionsOf({ permissions }: TenantDetail): ReadonlySet<Permission> {
  return new Set(permissions);
}

/** What the caller may do in the tenant, as the server says; nothing until it has said so. */
export function usePermissions(tenant: string): ReadonlySet<Permission> {
  const { data } = useQuery({ ...tenantQuery(tenant), select: permissionsOf });
  return data ?? NONE;
}
