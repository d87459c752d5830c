import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import type { KeyChange } from "@/lib/types";
import { keysKey } from "./list-keys";

export function useChangeKey(tenant: string, publicId: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: (body: KeyChange) =>
      unwrap(
        api.PATCH("/api/tenants/{tenant}/keys/{public_id}/", {
          params: { path: { tenant, public_id: publicId } },
          body,
        }),
      ),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: keysKey(tenant) }),
  });
}
