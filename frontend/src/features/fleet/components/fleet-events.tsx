import { Code, Table } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { ErrorNotice } from "@/components/error-notice";
import { RelativeTime } from "@/components/relative-time";
import { TableCard } from "@/components/table-card";
import { fleetEventsQuery } from "../api/list-events";

const COLUMNS = ["When", "Who", "Action", "On"];

/** Who drained and resumed what: of no tenant, so in no audit log of one. */
export function FleetEvents() {
  const { data, error, refetch } = useQuery(fleetEventsQuery());
  if (error) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (!data || data.count === 0) return null;
  return (
    <TableCard label="What operators did" title="What operators did" columns={COLUMNS}>
      {data.results.map(({ at, actor, action, target }) => (
        <Table.Tr key={`${at} ${target}`}>
          <Table.Td>
            <RelativeTime iso={at} />
          </Table.Td>
          <Table.Td>{actor}</Table.Td>
          <Table.Td>
            <Code>{action}</Code>
          </Table.Td>
          <Table.Td ff="monospace" fz="xs">
            {target}
          </Table.Td>
        </Table.Tr>
      ))}
    </TableCard>
  );
}
