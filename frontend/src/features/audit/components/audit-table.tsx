import { Code, Table, Text } from "@mantine/core";
import { IconHistory } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { EmptyState } from "@/components/empty-state";
import { ErrorNotice } from "@/components/error-notice";
import { Pager } from "@/components/pager";
import { RelativeTime } from "@/components/relative-time";
import { TableCard, TableSkeleton } from "@/components/table-card";
import type { AuditEvent } from "@/lib/types";
import { auditQuery } from "../api/list-audit";
import { changesOf } from "../changes";

const COLUMNS = ["When", "Who", "Action", "On", "What changed"];

function AuditRow({ event }: { event: AuditEvent }) {
  const changes = changesOf(event.before, event.after);
  return (
    <Table.Tr>
      <Table.Td>
        <RelativeTime iso={event.at} />
      </Table.Td>
      <Table.Td>
        {event.actor}
        {event.role !== "" && (
          <Text component="span" c="dimmed" fz="xs">
            {" "}
            {event.role}
          </Text>
        )}
      </Table.Td>
      <Table.Td>
        <Code>{event.action}</Code>
      </Table.Td>
      <Table.Td ff="monospace" fz="xs">
        {event.target}
      </Table.Td>
      <Table.Td maw={380} style={{ overflowWrap: "anywhere" }}>
        {changes.map(({ field, before, after }) => (
          <Text key={field} fz="xs" lineClamp={2}>
            <Text component="span" c="dimmed" fz="xs">
              {field}{" "}
            </Text>
            {before !== "" && `${before} → `}
            {after === "" ? "removed" : after}
          </Text>
        ))}
      </Table.Td>
    </Table.Tr>
  );
}

interface AuditTableProps {
  tenant: string;
  page: number;
  onPage: (page: number) => void;
}

export function AuditTable({ tenant, page, onPage }: AuditTableProps) {
  const { data, error, refetch } = useQuery(auditQuery(tenant, page));
  if (error) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (!data) return <TableSkeleton rows={8} />;
  if (data.count === 0) {
    return (
      <EmptyState icon={<IconHistory size={26} />} title="Nothing has happened yet">
        Every upload, activation, key and change of settings is written here with who did it.
      </EmptyState>
    );
  }
  return (
    <TableCard
      label="Audit log"
      columns={COLUMNS}
      minWidth={820}
      footer={<Pager page={page} count={data.count} onPage={onPage} />}
    >
      {data.results.map((event, index) => (
        <AuditRow key={index} event={event} />
      ))}
    </TableCard>
  );
}
