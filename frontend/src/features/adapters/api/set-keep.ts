import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import type { Adapter } from "@/lib/types";
import { adaptersKey } from "./list-adapters";

/** How near the device replicas keep an adapter; an operator's to say. */
export function useSetKeep(tenant: string, name: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: (keep: Adapter["keep"]) =>
      unwrap(
        api.PUT("/api/fleet/keep/{tenant}/{name}/", {
          params: { path: { tenant, name } },
          body: { keep },
        }),
      ),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: adaptersKey(tenant) }),
  });
}
