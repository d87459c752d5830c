import { Group, Paper, Table, Text, Title } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { ErrorNotice } from "@/components/error-notice";
import { usePermissions } from "@/lib/tenant";
import type { Alias, Version } from "@/lib/types";
import { aliasesQuery } from "../api/list-aliases";
import { DeleteAlias } from "./delete-alias";
import { EditAlias } from "./edit-alias";

interface AliasesCardProps {
  tenant: string;
  name: string;
  versions: Version[];
}

function AliasRow({ alias, ...props }: AliasesCardProps & { alias: Alias }) {
  const permissions = usePermissions(props.tenant);
  return (
    <Table.Tr>
      <Table.Td>
        <Text ff="monospace" fz="sm">
          {alias.name}
        </Text>
        <Text c="dimmed" fz="xs">
          {alias.version === null ? "the active version" : `version ${alias.version}`}
        </Text>
      </Table.Td>
      <Table.Td ta="right">
        {permissions.has("adapters") && (
          <Group gap={4} justify="flex-end" wrap="nowrap">
            <EditAlias key={alias.version} {...props} alias={alias} />
            <DeleteAlias tenant={props.tenant} alias={alias} />
          </Group>
        )}
      </Table.Td>
    </Table.Tr>
  );
}

/** Second names of the adapter, or of one of its versions. */
export function AliasesCard(props: AliasesCardProps) {
  const { data: aliases, error, refetch } = useQuery(aliasesQuery(props.tenant, props.name));
  const permissions = usePermissions(props.tenant);
  if (error) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (!aliases) return null;
  return (
    <Paper p="md" component="section" aria-label="Aliases">
      <Group justify="space-between" mb={4}>
        <Title order={2}>Aliases</Title>
        {permissions.has("adapters") && <EditAlias {...props} />}
      </Group>
      <Text c="dimmed" mb={aliases.results.length > 0 ? "sm" : 0}>
        Second names that clients may send as “model”, for the active version or for one that stays.
      </Text>
      {aliases.results.length > 0 && (
        <Table aria-label={`Aliases of ${props.name}`} horizontalSpacing={0}>
          <Table.Tbody>
            {aliases.results.map((alias) => (
              <AliasRow key={alias.name} {...props} alias={alias} />
            ))}
          </Table.Tbody>
        </Table>
      )}
    </Paper>
  );
}
