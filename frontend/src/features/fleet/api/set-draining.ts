import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { fleetQuery } from "./get-fleet";

/** Drain a replica, or let it take work again. */
export function useSetDraining(id: number) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: async (isDraining: boolean) => {
      const params = { path: { replica_id: id } };
      const path = isDraining
        ? ("/api/fleet/{replica_id}/drain/" as const)
        : ("/api/fleet/{replica_id}/resume/" as const);
      return unwrap(api.POST(path, { params }));
    },
    onSuccess: () => queryClient.invalidateQueries({ queryKey: fleetQuery().queryKey }),
  });
}
