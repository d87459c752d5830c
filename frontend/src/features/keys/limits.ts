import { formatCompact, formatMoney } from "@/lib/format";
import type { Key } from "@/lib/types";

interface LimitField {
  name: LimitName;
  label: string;
  /** What follows the number in a list of limits. */
  unit: string;
  isMoney?: true;
}

export type LimitName = Extract<
  keyof Key,
  | "requests_per_minute"
  | "tokens_per_minute"
  | "max_concurrency"
  | "tokens_per_day"
  | "tokens_per_month"
  | "daily_budget"
  | "monthly_budget"
>;

export const LIMITS: LimitField[] = [
  { name: "requests_per_minute", label: "Requests a minute", unit: " requests/min" },
  { name: "tokens_per_minute", label: "Tokens a minute", unit: " tokens/min" },
  { name: "max_concurrency", label: "Requests at once", unit: " at once" },
  { name: "tokens_per_day", label: "Tokens a day", unit: " tokens/day" },
  { name: "tokens_per_month", label: "Tokens a month", unit: " tokens/month" },
  { name: "daily_budget", label: "Money a day", unit: "/day", isMoney: true },
  { name: "monthly_budget", label: "Money a month", unit: "/month", isMoney: true },
];

/** What the inputs hold: empty is no limit. */
export type LimitValues = Record<LimitName, string | number>;

export const NO_LIMITS: LimitValues = {
  requests_per_minute: "",
  tokens_per_minute: "",
  max_concurrency: "",
  tokens_per_day: "",
  tokens_per_month: "",
  daily_budget: "",
  monthly_budget: "",
};

type Limits = Pick<Key, LimitName>;

export function limitValuesOf(key: Limits): LimitValues {
  const values = { ...NO_LIMITS };
  for (const { name } of LIMITS) values[name] = key[name] ?? "";
  return values;
}

function whole(value: string | number): number | null {
  return value === "" ? null : Number(value);
}

function money(value: string | number): string | null {
  return value === "" ? null : String(value);
}

export function limitsOf(values: LimitValues): Limits {
  return {
    requests_per_minute: whole(values.requests_per_minute),
    tokens_per_minute: whole(values.tokens_per_minute),
    max_concurrency: whole(values.max_concurrency),
    tokens_per_day: whole(values.tokens_per_day),
    tokens_per_month: whole(values.tokens_per_month),
    daily_budget: money(values.daily_budget),
    monthly_budget: money(values.monthly_budget),
  };
}

/** "10 requests/min", …; none for a key without limits of its own. */
export function limitWords(key: Limits): string[] {
  return LIMITS.flatMap(({ name, unit, isMoney }) => {
    const limit = key[name];
    if (limit === null) return [];
    return (isMoney ? formatMoney(limit) : formatCompact(Number(limit))) + unit;
  });
}
