import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import type { NewAlias } from "./create-alias";
import { adaptersKey } from "./list-adapters";

export function usePointAlias(tenant: string, adapter: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: ({ name, version }: NewAlias) =>
      unwrap(
        api.PUT("/api/tenants/{tenant}/aliases/{alias}/", {
          params: { path: { tenant, alias: name } },
          body: { adapter, version },
        }),
      ),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: adaptersKey(tenant) }),
  });
}
