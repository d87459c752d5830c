import { queryOptions, useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import type { Gate } from "@/lib/types";
import { adaptersKey } from "./list-adapters";

function gateKey(tenant: string, name: string) {
  return [...adaptersKey(tenant), "gate", name] as const;
}

export function gateQuery(tenant: string, name: string) {
  return queryOptions({
    queryKey: gateKey(tenant, name),
    queryFn: async () => {
      const found = await unwrap(
        api.GET("/api/tenants/{tenant}/adapters/{name}/gate/", {
          params: { path: { tenant, name } },
        }),
      );
      return found.gate;
    },
  });
}

export function useSetGate(tenant: string, name: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: (gate: Gate) =>
      unwrap(
        api.PUT("/api/tenants/{tenant}/adapters/{name}/gate/", {
          params: { path: { tenant, name } },
          body: { gate },
        }),
      ),
    onSuccess: ({ gate }) => queryClient.setQueryData(gateKey(tenant, name), gate),
  });
}
