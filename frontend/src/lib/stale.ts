import type { QueryClient, QueryKey } from "@tanstack/react-query";

interface Rule {
  keys: (tenant: string) => QueryKey[];
  /** Events within it make one refetch: requests may end many times a second. */
  delayMs: number;
}

const SOON_MS = 100;
const CALM_MS = 2_000;

/** What an event makes stale, by the noun before its dot. */
const RULES: Record<string, Rule> = {
  version: {
    keys: (t) => [
      [t, "adapters"],
      [t, "audit"],
    ],
    delayMs: SOON_MS,
  },
  adapter: {
    keys: (t) => [
      [t, "adapters"],
      [t, "audit"],
    ],
    delayMs: SOON_MS,
  },
  profile: {
    keys: (t) => [
      [t, "adapters"],
      [t, "audit"],
    ],
    delayMs: SOON_MS,
  },
  evaluation: { keys: (t) => [[t, "evaluations"]], delayMs: SOON_MS },
  import: { keys: (t) => [[t, "audit"]], delayMs: SOON_MS },
  key: {
    keys: (t) => [
      [t, "keys"],
      [t, "audit"],
    ],
    delayMs: SOON_MS,
  },
  budget: { keys: (t) => [[t, "notices"]], delayMs: SOON_MS },
  usage: { keys: (t) => [[t, "usage"]], delayMs: CALM_MS },
  replica: { keys: () => [["@operator", "fleet"]], delayMs: SOON_MS },
};

export interface Invalidator {
  take: (event: string) => void;
  stop: () => void;
}

export function createInvalidator(tenant: string, queryClient: QueryClient): Invalidator {
  const timers = new Map<string, ReturnType<typeof setTimeout>>();
  function take(event: string): void {
    const noun = event.split(".")[0] ?? "";
    const rule = RULES[noun];
    if (!rule || timers.has(noun)) return;
    const flush = () => {
      timers.delete(noun);
      for (const queryKey of rule.keys(tenant)) void queryClient.invalidateQueries({ queryKey });
    };
    timers.set(noun, setTimeout(flush, rule.delayMs));
  }
  return { take, stop: () => timers.forEach((timer) => clearTimeout(timer)) };
}
