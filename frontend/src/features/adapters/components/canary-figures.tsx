import { Table, Text } from "@mantine/core";
import { RelativeTime } from "@/components/relative-time";
import { formatCount } from "@/lib/format";
import type { Canary } from "@/lib/types";

const ROWS = [
  ["Requests", "num_requests"],
  ["Errors", "num_errors"],
  ["Prompt tokens", "prompt_tokens"],
  ["Completion tokens", "completion_tokens"],
] as const;

/** Both versions side by side, since the canary began. */
export function CanaryFigures({ canary }: { canary: Canary }) {
  const { active_figures: active, canary_figures: second } = canary;
  return (
    <div>
      <Table aria-label="Both versions" horizontalSpacing={0}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th />
            <Table.Th ta="right">{active ? `v${active.number} active` : "–"}</Table.Th>
            <Table.Th ta="right">v{second.number} canary</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {ROWS.map(([label, field]) => (
            <Table.Tr key={field}>
              <Table.Td>{label}</Table.Td>
              <Table.Td ta="right" className="tabular">
                {active ? formatCount(active[field]) : "–"}
              </Table.Td>
              <Table.Td ta="right" className="tabular">
                {formatCount(second[field])}
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
      <Text c="dimmed" fz="xs" mt={6}>
        Since <RelativeTime iso={canary.started_at} />; requests that named a version are among
        them.
      </Text>
    </div>
  );
}
