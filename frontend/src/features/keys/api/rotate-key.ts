import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { keysKey } from "./list-keys";

interface Rotation {
  publicId: string;
  overlap_s: number;
}

/** The answer holds the new secret, as that of a new key does. */
export function useRotateKey(tenant: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: ({ publicId, overlap_s }: Rotation) =>
      unwrap(
        api.POST("/api/tenants/{tenant}/keys/{public_id}/rotate/", {
          params: { path: { tenant, public_id: publicId } },
          body: { overlap_s },
        }),
      ),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: keysKey(tenant) }),
    gcTime: 0,
  });
}
