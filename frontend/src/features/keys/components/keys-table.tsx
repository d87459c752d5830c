import { Badge, Group, Stack, Table, Text } from "@mantine/core";
import { RelativeTime } from "@/components/relative-time";
import { NoValue, TableCard } from "@/components/table-card";
import { isPast } from "@/lib/format";
import type { Key } from "@/lib/types";
import { limitWords } from "../limits";
import { KeyActions } from "./key-actions";

const COLUMNS = ["Key", "May", "Limits of its own", "Created", "Last used", "Expires", ""];

/** A page that is left open must not call a key alive that has ended meanwhile. */
function stateOf({ state, expires_at }: Key): Key["state"] {
  return state !== "revoked" && expires_at && isPast(expires_at) ? "expired" : state;
}

function KeyEnd({ apiKey }: { apiKey: Key }) {
  const state = stateOf(apiKey);
  if (state === "revoked") return <Badge color="red">Revoked</Badge>;
  if (state === "expired") return <Badge color="gray">Expired</Badge>;
  if (!apiKey.expires_at) return <NoValue>Never</NoValue>;
  return (
    <Group gap={6} wrap="nowrap">
      <RelativeTime iso={apiKey.expires_at} />
      {state === "replaced" && <Badge color="yellow">Replaced</Badge>}
    </Group>
  );
}

function Badges({ words }: { words: string[] }) {
  return (
    <Group gap={4}>
      {words.map((word) => (
        <Badge key={word} color="gray" size="sm" tt="none">
          {word}
        </Badge>
      ))}
    </Group>
  );
}

function Rights({ apiKey: { scopes, allowed_models } }: { apiKey: Key }) {
  return (
    <Stack gap={4}>
      <Badges words={scopes} />
      {allowed_models.length > 0 && (
        <Text fz="xs" c="dimmed">
          only {allowed_models.join(", ")}
        </Text>
      )}
    </Stack>
  );
}

function KeyRow({ tenant, apiKey }: { tenant: string; apiKey: Key }) {
  const isRevoked = apiKey.state === "revoked";
  const limits = limitWords(apiKey);
  return (
    <Table.Tr opacity={isRevoked ? 0.6 : undefined}>
      <Table.Td>
        <Text fw={600} fz="sm">
          {apiKey.name}
        </Text>
        <Text ff="monospace" fz="xs">
          gh-{apiKey.public_id}…
        </Text>
        {apiKey.replaces && (
          <Text fz="xs" c="dimmed" style={{ whiteSpace: "nowrap" }}>
            replaces gh-{apiKey.replaces}…
          </Text>
        )}
      </Table.Td>
      <Table.Td maw={240}>
        <Rights apiKey={apiKey} />
      </Table.Td>
      <Table.Td maw={220}>{limits.length ? <Badges words={limits} /> : <NoValue />}</Table.Td>
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
        <KeyEnd apiKey={apiKey} />
      </Table.Td>
      <Table.Td ta="right">{!isRevoked && <KeyActions tenant={tenant} apiKey={apiKey} />}</Table.Td>
    </Table.Tr>
  );
}

export function KeysTable({ tenant, keys }: { tenant: string; keys: Key[] }) {
  return (
    <TableCard label="API keys" columns={COLUMNS} minWidth={900}>
      {keys.map((apiKey) => (
        <KeyRow key={apiKey.public_id} tenant={tenant} apiKey={apiKey} />
      ))}
    </TableCard>
  );
}
