import { Alert, Badge, Group, Loader, Paper, Stack, Text, Title } from "@mantine/core";
import { IconAlertTriangle } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { ErrorNotice } from "@/components/error-notice";
import { isNotFound } from "@/lib/errors";
import { humanize } from "@/lib/format";
import { usePermissions } from "@/lib/tenant";
import type { Adapter, Version } from "@/lib/types";
import { canaryQuery } from "../api/get-canary";
import { CanaryFigures } from "./canary-figures";
import { EndCanary } from "./end-canary";
import { EditCanary } from "./edit-canary";

interface CanaryCardProps {
  tenant: string;
  adapter: Adapter;
  versions: Version[];
}

/** A second version for a share of the end users, or what to begin one with. */
export function CanaryCard({ tenant, adapter, versions }: CanaryCardProps) {
  const permissions = usePermissions(tenant);
  const ready = versions.filter(({ state }) => state === "ready").map(({ number }) => number);
  if (adapter.canary) return <RunningCanary tenant={tenant} name={adapter.name} />;
  if (!permissions.has("adapters") || !adapter.active_version || ready.length === 0) return null;
  return (
    <Paper p="md" component="section" aria-label="Canary">
      <Group justify="space-between" mb={4}>
        <Title order={2}>Canary</Title>
        <EditCanary tenant={tenant} name={adapter.name} numbers={ready} />
      </Group>
      <Text c="dimmed">
        Give a share of the end users another version first, and compare the two.
      </Text>
    </Paper>
  );
}

function RunningCanary({ tenant, name }: { tenant: string; name: string }) {
  const { data: canary, error, refetch } = useQuery(canaryQuery(tenant, name));
  const permissions = usePermissions(tenant);
  // It ended a moment before the adapter says so.
  if (isNotFound(error)) return null;
  if (error) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (!canary) return null;
  const { version, percent, state } = canary;
  return (
    <Paper p="md" component="section" aria-label="Canary">
      <Stack gap="sm">
        <Group justify="space-between">
          <Group gap="sm">
            <Title order={2}>Canary</Title>
            <Badge
              color={state === "failed" ? "red" : state === "loading" ? "yellow" : "graft"}
              leftSection={state === "loading" && <Loader size={9} color="currentColor" />}
            >
              {humanize(state)}
            </Badge>
          </Group>
          {permissions.has("adapters") && (
            <EditCanary
              key={percent}
              tenant={tenant}
              name={name}
              numbers={[version]}
              percent={percent}
            />
          )}
        </Group>
        <Text c="dimmed">
          {state === "running"
            ? `Version ${version} serves ${percent} % of the end users, each of them always.`
            : `Everyone gets the active version${state === "loading" ? " until a replica holds the canary" : ""}.`}
        </Text>
        {canary.error && (
          <Alert color="red" icon={<IconAlertTriangle size={18} />} title="What went wrong">
            {canary.error}
          </Alert>
        )}
        <CanaryFigures canary={canary} />
        {permissions.has("adapters") && (
          <EndCanary
            tenant={tenant}
            name={name}
            version={version}
            isRunning={state === "running"}
          />
        )}
      </Stack>
    </Paper>
  );
}
