import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import type { Profile } from "@/lib/types";
import { profileQuery } from "./get-profile";

export function useSetProfile(tenant: string, name: string, number: number) {
  const queryClient = useQueryClient();
  const { queryKey } = profileQuery(tenant, name, number);
  return useMutation({
    mutationFn: (body: Profile) =>
      unwrap(
        api.PUT("/api/tenants/{tenant}/adapters/{name}/versions/{number}/profile/", {
          params: { path: { tenant, name, number } },
          body,
        }),
      ),
    onSuccess: (profile) => queryClient.setQueryData(queryKey, profile),
  });
}
