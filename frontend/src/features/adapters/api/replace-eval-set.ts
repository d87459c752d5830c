import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { adaptersKey } from "./list-adapters";

export function useReplaceEvalSet(tenant: string, name: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: async (file: File) =>
      unwrap(
        api.PUT("/api/tenants/{tenant}/adapters/{name}/eval-set/", {
          params: { path: { tenant, name } },
          body: { content: await file.text() },
        }),
      ),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: adaptersKey(tenant) }),
  });
}
