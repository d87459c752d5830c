import { Paper, SimpleGrid, Skeleton, Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { ErrorNotice } from "@/components/error-notice";
import { summaryQuery } from "../api/get-summary";
import type { Metric } from "../chart-data";
import type { UsagePeriod } from "../period";
import { ChartCard } from "./chart-card";
import { Totals } from "./totals";

interface UsageOverviewProps {
  tenant: string;
  period: UsagePeriod;
  metric: Metric;
  onMetric: (metric: Metric) => void;
}

function OverviewSkeleton() {
  return (
    <Stack gap="md" role="status" aria-label="Loading">
      <SimpleGrid cols={{ base: 2, md: 4 }} spacing="sm">
        {[0, 1, 2, 3].map((index) => (
          <Skeleton key={index} height={76} />
        ))}
      </SimpleGrid>
      <Paper p="md">
        <Skeleton height={290} />
      </Paper>
    </Stack>
  );
}

export function UsageOverview({ tenant, period, metric, onMetric }: UsageOverviewProps) {
  const { data, error, refetch } = useQuery(summaryQuery(tenant, period));
  if (error) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (!data) return <OverviewSkeleton />;
  return (
    <Stack gap="md">
      <Totals totals={data.total} />
      <ChartCard
        rows={data.by_day_and_adapter}
        period={period}
        metric={metric}
        onMetric={onMetric}
      />
    </Stack>
  );
}
