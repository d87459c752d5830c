import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { adaptersKey } from "./list-adapters";

export function useRetireAdapter(tenant: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: (name: string) =>
      unwrap(
        api.POST("/api/tenants/{tenant}/adapters/{name}/retire/", {
          params: { path: { tenant, name } },
        }),
      ),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: adaptersKey(tenant) }),
  });
}
