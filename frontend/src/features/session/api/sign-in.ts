import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { SESSION_KEY } from "./get-session";

export interface Credentials {
  login: string;
  password: string;
}

export function useSignIn() {
  const queryClient = useQueryClient();
  return useMutation({
    meta: { isSignIn: true },
    mutationFn: (body: Credentials) => unwrap(api.POST("/api/session", { body })),
    onSuccess: (session) => {
      // What a former user saw must not flash up for the next.
      queryClient.clear();
      queryClient.setQueryData(SESSION_KEY, session);
    },
  });
}
