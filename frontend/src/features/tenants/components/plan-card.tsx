import { Group, Paper, Progress, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { formatCompact, formatMoney } from "@/lib/format";
import { tenantQuery } from "@/lib/tenant";
import type { TenantDetail } from "@/lib/types";

const FULL_PERCENT = 100;
const NEAR_PERCENT = 80;
const REFRESH_MS = 30_000;

function textOf({ limits, plan }: TenantDetail): string {
  const { requests_per_minute, tokens_per_minute, max_concurrency } = limits;
  const { tokens_per_day, tokens_per_month, daily_budget } = limits;
  const texts = [
    requests_per_minute && `${formatCompact(requests_per_minute)} requests/min`,
    tokens_per_minute && `${formatCompact(tokens_per_minute)} tokens/min`,
    max_concurrency && `${max_concurrency} at once`,
    tokens_per_day && `${formatCompact(tokens_per_day)} tokens/day`,
    tokens_per_month && `${formatCompact(tokens_per_month)} tokens/month`,
    daily_budget && `${formatMoney(daily_budget)}/day`,
    `rank ≤ ${plan.max_rank}`,
  ];
  return texts.filter(Boolean).join(" · ");
}

function Budget({ spent, budget }: { spent: number; budget: number }) {
  const percent = budget === 0 ? FULL_PERCENT : (spent / budget) * FULL_PERCENT;
  const color = percent >= FULL_PERCENT ? "red" : percent >= NEAR_PERCENT ? "yellow" : undefined;
  return (
    <Progress.Root size="sm" mt={8}>
      <Progress.Section
        value={Math.min(percent, FULL_PERCENT)}
        color={color}
        aria-label="Share of the monthly budget that is spent"
      />
    </Progress.Root>
  );
}

/** This calendar month against its budget, whatever period the page shows. */
export function PlanCard({ tenant }: { tenant: string }) {
  const { data } = useQuery({ ...tenantQuery(tenant), refetchInterval: REFRESH_MS });
  if (!data) return null;
  const { plan, usage_this_month } = data;
  const { monthly_budget } = data.limits;
  return (
    <Paper px="md" py="sm" component="section" aria-label="Plan">
      <Group justify="space-between" gap="xs">
        <Text fz="sm">
          <b>{formatMoney(usage_this_month.cost)}</b>{" "}
          {monthly_budget === null ? "this month" : `of ${formatMoney(monthly_budget)} this month`}
        </Text>
        <Text fz="xs" c="dimmed">
          {plan.name} plan · {textOf(data)}
        </Text>
      </Group>
      {monthly_budget !== null && (
        <Budget spent={Number(usage_this_month.cost)} budget={Number(monthly_budget)} />
      )}
    </Paper>
  );
}
