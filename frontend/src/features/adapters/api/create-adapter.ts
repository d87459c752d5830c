import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { adaptersKey } from "./list-adapters";

export interface NewAdapter {
  name: string;
  description: string;
}

export function useCreateAdapter(tenant: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: (body: NewAdapter) =>
      unwrap(api.POST("/api/tenants/{tenant}/adapters/", { params: { path: { tenant } }, body })),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: adaptersKey(tenant) }),
  });
}
