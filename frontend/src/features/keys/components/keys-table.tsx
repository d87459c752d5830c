import { Badge, Group, Table, Text } from "@mantine/core";
import { RelativeTime } from "@/components/relative-time";
import { NoValue, TableCard } from "@/components/table-card";
import { isPast } from "@/lib/format";
import type { Key } from "@/lib/types";
import { RevokeKey } from "./revoke-key";

const COLUMNS = ["Name", "Key", "Scopes", "Created", "Last used", "Expires", ""];

function KeyStatus({ apiKey }: { apiKey: Key }) {
  if (apiKey.revoked_at) return <Badge color="red">Revoked</Badge>;
  if (!apiKey.expires_at) return <NoValue>Never</NoValue>;
  return isPast(apiKey.expires_at) ? (
    <Badge color="gray">Expired</Badge>
  ) : (
    <RelativeTime iso={apiKey.expires_at} />
  );
}

function KeyRow({ tenant, apiKey }: { tenant: string; apiKey: Key }) {
  const isRevoked = Boolean(apiKey.revoked_at);
  return (
    <Table.Tr opacity={isRevoked ? 0.6 : undefined}>
      <Table.Td>
        <Text fw={600} fz="sm">
          {apiKey.name}
        </Text>
      </Table.Td>
      <Table.Td>
        <Text ff="monospace" fz="xs">
          gh-{apiKey.public_id}…
        </Text>
      </Table.Td>
      <Table.Td>
        <Group gap={4}>
          {apiKey.scopes.map((scope) => (
            <Badge key={scope} color="gray" size="sm">
              {scope}
            </Badge>
          ))}
        </Group>
      </Table.Td>
      <Table.Td>
        <RelativeTime iso={apiKey.created_at} />
      </Table.Td>
      <Table.Td>
        {apiKey.last_used_at ? (
          <RelativeTime iso={apiKey.last_used_at} />
        ) : (
          <NoValue>Never</NoValue>
        )}
      </Table.Td>
      <Table.Td>
        <KeyStatus apiKey={apiKey} />
      </Table.Td>
      <Table.Td ta="right">{!isRevoked && <RevokeKey tenant={tenant} apiKey={apiKey} />}</Table.Td>
    </Table.Tr>
  );
}

export function KeysTable({ tenant, keys }: { tenant: string; keys: Key[] }) {
  return (
    <TableCard label="API keys" columns={COLUMNS} minWidth={780}>
      {keys.map((apiKey) => (
        <KeyRow key={apiKey.public_id} tenant={tenant} apiKey={apiKey} />
      ))}
    </TableCard>
  );
}
