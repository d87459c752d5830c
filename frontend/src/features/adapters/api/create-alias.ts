import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { adaptersKey } from "./list-adapters";

export interface NewAlias {
  name: string;
  version: number | null;
}

export function useCreateAlias(tenant: string, adapter: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: (alias: NewAlias) =>
      unwrap(
        api.POST("/api/tenants/{tenant}/aliases/", {
          params: { path: { tenant } },
          body: { ...alias, adapter },
        }),
      ),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: adaptersKey(tenant) }),
  });
}
