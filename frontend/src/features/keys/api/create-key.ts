import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import type { NewKey } from "@/lib/types";
import { keysKey } from "./list-keys";

/** The answer holds the secret: it is kept by the dialog that shows it, never in the query cache. */
export function useCreateKey(tenant: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: (body: NewKey) =>
      unwrap(api.POST("/api/tenants/{tenant}/keys/", { params: { path: { tenant } }, body })),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: keysKey(tenant) }),
    gcTime: 0,
  });
}
