import { parseSearchWith, stringifySearchWith } from "@tanstack/react-router";
import * as z from "zod";

/** What the addresses may hold. A value that cannot be is dropped, not an error page. */
// The router reads "42" and "true" as what they look like; here they are what was typed.
const text = z
  .union([z.string(), z.number(), z.boolean()])
  .transform(String)
  .optional()
  .catch(undefined);
const whole = z.coerce.number().int().min(1).optional().catch(undefined);
const day = z.iso.date().optional().catch(undefined);

export const signIn = z.object({ next: text });
export const adapters = z.object({ q: text });
export const adapter = z.object({ version: whole });
export const playground = z.object({ adapter: text, version: whole, against: text });
export const paged = z.object({ page: whole });
export const usage = z.object({
  from: day,
  to: day,
  metric: z.enum(["tokens", "requests", "cost"]).optional().catch(undefined),
  page: whole,
});

// Plain strings, so that ?q=42 and ?from=2026-03-05 read as they are written.
export const parse = parseSearchWith((value) => value);
export const stringify = stringifySearchWith(String);
