import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { evaluationsKey } from "./list-evaluations";

export function useBeginEvaluation(tenant: string, name: string, number: number) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: (systemPrompt: string) =>
      unwrap(
        api.POST("/api/tenants/{tenant}/adapters/{name}/versions/{number}/evaluations/", {
          params: { path: { tenant, name, number } },
          // Left out, it is the one of the version's serving profile.
          body: systemPrompt === "" ? {} : { system_prompt: systemPrompt },
        }),
      ),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: evaluationsKey(tenant) }),
  });
}
