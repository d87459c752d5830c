import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { adaptersKey } from "./list-adapters";

export interface NewCanary {
  version: number;
  /** Of the end users: 1 to 99; 100 activates the version. */
  percent: number;
}

export function useSetCanary(tenant: string, name: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: (body: NewCanary) =>
      unwrap(
        api.PUT("/api/tenants/{tenant}/adapters/{name}/canary/", {
          params: { path: { tenant, name } },
          body,
        }),
      ),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: adaptersKey(tenant) }),
  });
}
