import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";

export const SESSION_KEY = ["@session"] as const;

export function sessionQuery() {
  return queryOptions({
    queryKey: SESSION_KEY,
    queryFn: () => unwrap(api.GET("/api/session")),
    staleTime: 60_000,
  });
}
