import { Badge, Table, Tooltip } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { ErrorNotice } from "@/components/error-notice";
import { Pager } from "@/components/pager";
import { RelativeTime } from "@/components/relative-time";
import { NoValue, TableCard, TableSkeleton } from "@/components/table-card";
import { formatCount, formatMoney } from "@/lib/format";
import type { UsageRecord } from "@/lib/types";
import { usageQuery } from "../api/list-usage";
import type { UsagePeriod } from "../period";

const COLUMNS = ["When", "Model", "Status", "Prompt", "Cached", "Completion", "Cost", "Request"];
const COLORS: Record<string, string> = { finished: "graft", failed: "red", open: "blue" };

function Count({ value }: { value: number | null | undefined }) {
  return value === null || value === undefined ? <NoValue /> : formatCount(value);
}

function RequestRow({ row }: { row: UsageRecord }) {
  return (
    <Table.Tr className="tabular">
      <Table.Td>
        <RelativeTime iso={row.started_at} />
      </Table.Td>
      <Table.Td fw={550}>{row.model}</Table.Td>
      <Table.Td>
        <Tooltip label={row.error_code} disabled={!row.error_code}>
          <Badge color={COLORS[row.status] ?? "gray"}>{row.status}</Badge>
        </Tooltip>
      </Table.Td>
      <Table.Td>
        <Count value={row.prompt_tokens} />
      </Table.Td>
      <Table.Td>
        <Count value={row.cached_tokens} />
      </Table.Td>
      <Table.Td>
        <Count value={row.completion_tokens} />
      </Table.Td>
      <Table.Td>{formatMoney(row.cost)}</Table.Td>
      <Table.Td
        ff="monospace"
        fz="xs"
        maw={180}
        style={{ overflow: "hidden", textOverflow: "ellipsis" }}
      >
        {row.request_id}
      </Table.Td>
    </Table.Tr>
  );
}

interface RequestsTableProps {
  tenant: string;
  period: UsagePeriod;
  page: number;
  onPage: (page: number) => void;
}

export function RequestsTable({ tenant, period, page, onPage }: RequestsTableProps) {
  const { data, error, refetch } = useQuery(usageQuery(tenant, period, page));
  if (error) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (!data) return <TableSkeleton />;
  if (data.count === 0) return null;
  return (
    <TableCard
      label="Requests"
      title="Requests"
      columns={COLUMNS}
      minWidth={860}
      footer={<Pager page={page} count={data.count} onPage={onPage} />}
    >
      {data.results.map((row) => (
        <RequestRow key={row.request_id} row={row} />
      ))}
    </TableCard>
  );
}
