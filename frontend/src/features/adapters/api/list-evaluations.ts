import { queryOptions } from "@tanstack/react-query";
import { WORKING_POLL_MS } from "@/config/app";
import { api, unwrap } from "@/lib/api";
import type { Evaluation } from "@/lib/types";

export function evaluationsKey(tenant: string) {
  return [tenant, "evaluations"] as const;
}

export function isInWork(evaluation: Evaluation | undefined): boolean {
  return evaluation?.status === "queued" || evaluation?.status === "running";
}

/** The latest one, or null. Asked again while it runs, should its event get lost. */
export function latestEvaluationQuery(tenant: string, name: string, number: number) {
  return queryOptions({
    queryKey: [...evaluationsKey(tenant), name, number],
    queryFn: async () => {
      const page = await unwrap(
        api.GET("/api/tenants/{tenant}/adapters/{name}/versions/{number}/evaluations/", {
          params: { path: { tenant, name, number }, query: { limit: 1 } },
        }),
      );
      return page.results[0] ?? null;
    },
    refetchInterval: (query) => (isInWork(query.state.data ?? undefined) ? WORKING_POLL_MS : false),
  });
}
