import { queryOptions, skipToken, type QueryClient } from "@tanstack/react-query";
import * as z from "zod";
import type { ServerEvent } from "@/lib/events";

const progressSchema = z.object({
  adapter: z.string(),
  number: z.number(),
  stage: z.enum(["joining", "unpacking", "header", "values", "digest"]),
  percent: z.number(),
});

export type ValidationProgress = z.infer<typeof progressSchema>;

/** Where the check of a version is: only events say it, nothing is fetched. */
export function validationProgressQuery(tenant: string, name: string, number: number) {
  return queryOptions<ValidationProgress>({
    queryKey: [tenant, "validation", name, number],
    queryFn: skipToken,
  });
}

export function takeProgress(tenant: string, queryClient: QueryClient, told: ServerEvent): void {
  if (told.event !== "validation.changed") return;
  const progress = progressSchema.safeParse(told.data);
  if (!progress.success) return;
  const { adapter, number } = progress.data;
  const { queryKey } = validationProgressQuery(tenant, adapter, number);
  queryClient.setQueryData(queryKey, progress.data);
}
