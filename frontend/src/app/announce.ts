import * as z from "zod";
import type { ServerEvent } from "@/lib/events";
import { notifyDone, notifyProblem } from "@/lib/notify";

const versionSchema = z.object({ adapter: z.string(), number: z.number(), state: z.string() });

/** The few ends of background work that are worth a word on any page. */
export function announce({ event, data }: ServerEvent): void {
  if (event !== "version.changed") return;
  const version = versionSchema.safeParse(data);
  if (!version.success) return;
  const { adapter, number, state } = version.data;
  const name = `${adapter} v${number}`;
  if (state === "active") notifyDone(`${name} is active`, "New requests get it now.");
  if (state === "rejected") notifyProblem(`${name} was rejected`, "Its report has every reason.");
  if (state === "failed") notifyProblem(`${name} failed`, "It can be retried on its page.");
}
