import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { keysKey } from "./list-keys";

export function useRevokeKey(tenant: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: (publicId: string) =>
      unwrap(
        api.DELETE("/api/tenants/{tenant}/keys/{public_id}/", {
          params: { path: { tenant, public_id: publicId } },
        }),
      ),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: keysKey(tenant) }),
  });
}
