import { Group, Paper, SimpleGrid, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { formatCompact, formatMoney } from "@/lib/format";
import { tenantQuery } from "@/lib/tenant";
import type { TenantDetail } from "@/lib/types";
import { metersOf } from "../meters";
import { PlanMeter } from "./plan-meter";

const REFRESH_MS = 30_000;

function textOf({ limits, plan }: TenantDetail): string {
  const { requests_per_minute, tokens_per_minute, max_concurrency } = limits;
  const texts = [
    `${plan.name} plan`,
    requests_per_minute && `${formatCompact(requests_per_minute)} requests/min`,
    tokens_per_minute && `${formatCompact(tokens_per_minute)} tokens/min`,
    max_concurrency && `${max_concurrency} at once`,
    `rank ≤ ${plan.max_rank}`,
  ];
  return texts.filter(Boolean).join(" · ");
}

/** This calendar month and day against their limits, whatever period the page shows. */
export function PlanCard({ tenant }: { tenant: string }) {
  const { data } = useQuery({ ...tenantQuery(tenant), refetchInterval: REFRESH_MS });
  if (!data) return null;
  const meters = metersOf(data);
  return (
    <Paper px="md" py="sm" component="section" aria-label="Plan">
      <Group justify="space-between" gap="xs">
        {data.limits.monthly_budget === null && (
          <Text fz="sm">
            <b>{formatMoney(data.usage_this_month.cost)}</b> this month
          </Text>
        )}
        <Text fz="xs" c="dimmed">
          {textOf(data)}
        </Text>
      </Group>
      {meters.length > 0 && (
        <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="xl" verticalSpacing="sm" mt="xs">
          {meters.map((meter) => (
            <PlanMeter key={meter.name} meter={meter} />
          ))}
        </SimpleGrid>
      )}
    </Paper>
  );
}
