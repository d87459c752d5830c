import { Table, UnstyledButton } from "@mantine/core";
import { Digest } from "@/components/digest";
import { RelativeTime } from "@/components/relative-time";
import { StateBadge } from "@/components/state-badge";
import { NoValue, TableCard } from "@/components/table-card";
import { formatBytes } from "@/lib/format";
import type { Version } from "@/lib/types";
import classes from "./versions-table.module.css";
import { VersionActions } from "./version-actions";

const COLUMNS = ["Version", "State", "Rank", "Size", "Digest", "Uploaded", ""];

interface VersionsTableProps {
  tenant: string;
  name: string;
  versions: Version[];
  selected: number | undefined;
  onSelect: (number: number) => void;
}

export function VersionsTable(props: VersionsTableProps) {
  const { tenant, name, versions, selected, onSelect } = props;
  const active = versions.find((version) => version.state === "active");
  return (
    <TableCard label={`Versions of ${name}`} columns={COLUMNS} minWidth={720} title="Versions">
      {versions.map((version) => (
        <Table.Tr
          key={version.number}
          className={classes.row}
          data-selected={version.number === selected}
          aria-selected={version.number === selected}
          onClick={() => onSelect(version.number)}
        >
          <Table.Td>
            <UnstyledButton
              fw={600}
              fz="sm"
              className="tabular"
              aria-label={`Show version ${version.number}`}
              onClick={() => onSelect(version.number)}
            >
              v{version.number}
            </UnstyledButton>
          </Table.Td>
          <Table.Td>
            <StateBadge state={version.state} />
          </Table.Td>
          <Table.Td className="tabular">{version.rank ?? <NoValue />}</Table.Td>
          <Table.Td className="tabular">
            {version.size_bytes ? formatBytes(version.size_bytes) : <NoValue />}
          </Table.Td>
          <Table.Td>{version.digest ? <Digest digest={version.digest} /> : <NoValue />}</Table.Td>
          <Table.Td>
            <RelativeTime iso={version.created_at} />
            {version.created_by ? <NoValue> by {version.created_by}</NoValue> : null}
          </Table.Td>
          <Table.Td ta="right" onClick={(event) => event.stopPropagation()}>
            <VersionActions tenant={tenant} name={name} version={version} active={active} />
          </Table.Td>
        </Table.Tr>
      ))}
    </TableCard>
  );
}
