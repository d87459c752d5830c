import { formatCompact, formatMoney } from "@/lib/format";
import type { TenantDetail, UsageTotals } from "@/lib/types";

/** How far a limit of a day or month is used. percent: of it, at most 100. */
export interface Meter {
  name: string;
  used: string;
  limit: string;
  percent: number;
}

const FULL_PERCENT = 100;

function meter(
  name: string,
  used: number,
  limit: number,
  format: (value: number) => string,
): Meter {
  const percent = limit === 0 ? FULL_PERCENT : Math.min(FULL_PERCENT, (used / limit) * 100);
  return { name, used: format(used), limit: format(limit), percent };
}

/** As the limits count them: cached ones are a part of the prompt's. */
function tokensOf({ prompt_tokens, completion_tokens }: UsageTotals): number {
  return prompt_tokens + completion_tokens;
}

/** One for each limit there is, the month's first. */
export function metersOf({ limits, usage_this_month, usage_today }: TenantDetail): Meter[] {
  const periods = [
    ["this month", usage_this_month, limits.monthly_budget, limits.tokens_per_month],
    ["today", usage_today, limits.daily_budget, limits.tokens_per_day],
  ] as const;
  return periods.flatMap(([when, usage, budget, tokens]) => [
    ...(budget === null ? [] : [meter(when, Number(usage.cost), Number(budget), formatMoney)]),
    ...(tokens === null ? [] : [meter(`tokens ${when}`, tokensOf(usage), tokens, formatCompact)]),
  ]);
}
