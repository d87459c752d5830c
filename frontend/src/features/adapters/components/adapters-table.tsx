import { Badge, Table, Text } from "@mantine/core";
import { useNavigate } from "@tanstack/react-router";
import { Digest } from "@/components/digest";
import { TextLink } from "@/components/link";
import { RelativeTime } from "@/components/relative-time";
import { StateBadge } from "@/components/state-badge";
import { NoValue, TableCard } from "@/components/table-card";
import type { Adapter } from "@/lib/types";

const COLUMNS = ["Name", "Serving", "Digest", "Versions", "Changed"];

function Serving({ adapter }: { adapter: Adapter }) {
  if (adapter.active_version) {
    return (
      <span style={{ display: "inline-flex", gap: 8, alignItems: "center" }}>
        <StateBadge state="active" />
        <span className="tabular">v{adapter.active_version.number}</span>
      </span>
    );
  }
  if (adapter.retired_at) return <StateBadge state="retired" />;
  return <Badge color="gray">{adapter.num_versions === 0 ? "No version yet" : "Not active"}</Badge>;
}

function AdapterRow({ tenant, adapter }: { tenant: string; adapter: Adapter }) {
  const navigate = useNavigate();
  const params = { tenant, name: adapter.name };
  return (
    <Table.Tr
      style={{ cursor: "pointer" }}
      onClick={() => void navigate({ to: "/t/$tenant/adapters/$name", params })}
    >
      <Table.Td>
        <TextLink to="/t/$tenant/adapters/$name" params={params} fw={600} fz="sm" c="inherit">
          {adapter.name}
        </TextLink>
        {adapter.description !== "" && (
          <Text c="dimmed" fz="xs" lineClamp={1} maw={420}>
            {adapter.description}
          </Text>
        )}
      </Table.Td>
      <Table.Td>
        <Serving adapter={adapter} />
      </Table.Td>
      <Table.Td>
        {adapter.active_version ? <Digest digest={adapter.active_version.digest} /> : <NoValue />}
      </Table.Td>
      <Table.Td className="tabular">{adapter.num_versions}</Table.Td>
      <Table.Td>
        <RelativeTime iso={adapter.updated_at} />
      </Table.Td>
    </Table.Tr>
  );
}

export function AdaptersTable({ tenant, adapters }: { tenant: string; adapters: Adapter[] }) {
  return (
    <TableCard label="Adapters" columns={COLUMNS} minWidth={720}>
      {adapters.map((adapter) => (
        <AdapterRow key={adapter.name} tenant={tenant} adapter={adapter} />
      ))}
    </TableCard>
  );
}
