import { Stack, Text, TextInput } from "@mantine/core";
import { IconLeaf, IconSearch } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { EmptyState } from "@/components/empty-state";
import { ErrorNotice } from "@/components/error-notice";
import { LinkButton } from "@/components/link";
import { TableSkeleton } from "@/components/table-card";
import { usePermissions } from "@/lib/tenant";
import type { Adapter } from "@/lib/types";
import { adaptersQuery } from "../api/list-adapters";
import { AdaptersTable } from "./adapters-table";

interface AdaptersListProps {
  tenant: string;
  search: string;
  onSearch: (search: string) => void;
}

function matches(adapter: Adapter, search: string): boolean {
  const text = `${adapter.name} ${adapter.description} ${adapter.active_version?.digest ?? ""}`;
  return text.toLowerCase().includes(search.trim().toLowerCase());
}

function NoAdapters({ tenant }: { tenant: string }) {
  const permissions = usePermissions(tenant);
  return (
    <EmptyState
      icon={<IconLeaf size={26} />}
      title="No adapters yet"
      action={
        permissions.has("adapters") && (
          <LinkButton to="/t/$tenant/adapters/new" params={{ tenant }}>
            Upload the first adapter
          </LinkButton>
        )
      }
    >
      Train a LoRA with PEFT on the base model and upload what it saved. It is checked tensor by
      tensor, gets a digest, and answers under its own model name as soon as you activate it.
    </EmptyState>
  );
}

export function AdaptersList({ tenant, search, onSearch }: AdaptersListProps) {
  // The field is ahead of the address, which follows in its own time: no letter may get lost between.
  const [typed, setTyped] = useState(search);
  const { data, error, refetch } = useQuery(adaptersQuery(tenant));
  if (error) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (!data) return <TableSkeleton />;
  if (data.count === 0) return <NoAdapters tenant={tenant} />;
  const shown = data.results.filter((adapter) => matches(adapter, typed));
  return (
    <Stack gap="sm">
      <TextInput
        type="search"
        aria-label="Search adapters"
        placeholder="Search by name, description or digest"
        leftSection={<IconSearch size={16} />}
        value={typed}
        onChange={({ currentTarget: { value } }) => {
          setTyped(value);
          onSearch(value);
        }}
        maw={380}
      />
      {shown.length > 0 ? (
        <AdaptersTable tenant={tenant} adapters={shown} />
      ) : (
        <Text c="dimmed" py="lg" ta="center" role="status">
          No adapter matches “{typed}”.
        </Text>
      )}
    </Stack>
  );
}
