import * as z from "zod";
import type { Replica } from "@/lib/types";

const count = z.number().catch(0);

/** What a replica said of itself when it was last asked; nothing yet for one that never answered. */
const stateSchema = z.object({
  model: z.string().catch(""),
  num_running: count,
  num_waiting: count,
  num_kv_blocks: count,
  num_free_kv_blocks: count,
  adapters: z.array(z.object({ digest: z.string(), rank: z.number(), tier: z.string() })).catch([]),
});

export type Load = z.infer<typeof stateSchema>;

export function loadOf(replica: Replica): Load {
  return stateSchema.parse(replica.state);
}

export interface Held {
  digest: string;
  /** "device", "host" or "disk" as reported; else what its placement says: "pending", "failed", … */
  where: string;
  rank?: number;
  error?: string;
}

/** Everything that lies on a replica or should. */
export function heldBy(replica: Replica, load: Load): Held[] {
  const reported = new Set(load.adapters.map(({ digest }) => digest));
  const held = load.adapters.map(({ digest, rank, tier }) => ({ digest, rank, where: tier }));
  const awaited = replica.placements.filter(({ digest }) => !reported.has(digest));
  return [...held, ...awaited.map(({ digest, state, error }) => ({ digest, where: state, error }))];
}
