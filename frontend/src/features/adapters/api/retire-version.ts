import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { adaptersKey } from "./list-adapters";

export function useRetireVersion(tenant: string, name: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: (number: number) =>
      unwrap(
        api.POST("/api/tenants/{tenant}/adapters/{name}/versions/{number}/retire/", {
          params: { path: { tenant, name, number } },
        }),
      ),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: adaptersKey(tenant) }),
  });
}
