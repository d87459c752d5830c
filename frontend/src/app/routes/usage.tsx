import { Stack } from "@mantine/core";
import { getRouteApi } from "@tanstack/react-router";
import { PageHeader } from "@/components/page-header";
import { useTitle } from "@/components/use-title";
import { PlanCard } from "@/features/tenants/components/plan-card";
import { BudgetNotices } from "@/features/usage/components/budget-notices";
import { ExportMenu } from "@/features/usage/components/export-menu";
import { PeriodPicker } from "@/features/usage/components/period-picker";
import { RequestsTable } from "@/features/usage/components/requests-table";
import { UsageOverview } from "@/features/usage/components/usage-overview";
import { periodOf } from "@/features/usage/period";

const route = getRouteApi("/signed-in/t/$tenant/usage");

export function UsagePage() {
  const { tenant } = route.useParams();
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const period = periodOf(search.from, search.to);
  useTitle("Usage", tenant);
  function change(next: Partial<typeof search>): void {
    void navigate({ search: { ...search, ...next }, resetScroll: false });
  }
  return (
    <>
      <PageHeader
        title="Usage"
        description="Every request is in the ledger once. Days are UTC."
        actions={<ExportMenu tenant={tenant} period={period} />}
      />
      <Stack gap="md">
        <PeriodPicker period={period} onChange={(next) => change({ ...next, page: undefined })} />
        <BudgetNotices tenant={tenant} />
        <PlanCard tenant={tenant} />
        <UsageOverview
          tenant={tenant}
          period={period}
          metric={search.metric ?? "tokens"}
          onMetric={(metric) => change({ metric })}
        />
        <RequestsTable
          tenant={tenant}
          period={period}
          page={search.page ?? 1}
          onPage={(page) => change({ page: page === 1 ? undefined : page })}
        />
      </Stack>
    </>
  );
}
