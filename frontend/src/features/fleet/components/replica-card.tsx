import { Alert, Badge, Group, Paper, Progress, SimpleGrid, Text, Title } from "@mantine/core";
import { RelativeTime } from "@/components/relative-time";
import { formatCount } from "@/lib/format";
import type { Replica } from "@/lib/types";
import { Residency } from "./residency";

function KvUse({ used, total }: { used: number; total: number }) {
  const percent = total === 0 ? 0 : Math.round((used / total) * 100);
  return (
    <div>
      <Group justify="space-between" mb={6}>
        <Text fz="xs" c="dimmed">
          KV cache
        </Text>
        <Text fz="xs" className="tabular">
          {formatCount(used)} of {formatCount(total)} blocks
        </Text>
      </Group>
      <Progress value={percent} size="sm" aria-label="KV cache in use" />
    </div>
  );
}

function Load({ label, value }: { label: string; value: number }) {
  return (
    <div>
      <Text fz="xs" c="dimmed">
        {label}
      </Text>
      <Text fw={600} className="tabular">
        {formatCount(value)}
      </Text>
    </div>
  );
}

export function ReplicaCard({ replica }: { replica: Replica }) {
  const { url, healthy, error, last_seen_at, adapters } = replica;
  return (
    <Paper p="md" component="section" aria-label={`Replica ${url}`}>
      <Group justify="space-between" mb="md">
        <Group gap="sm">
          <Title order={2} ff="monospace" fz="sm">
            {url}
          </Title>
          <Badge color={healthy ? "graft" : "red"}>{healthy ? "Healthy" : "Not healthy"}</Badge>
        </Group>
        <Text fz="xs" c="dimmed">
          {replica.model} · seen {last_seen_at ? <RelativeTime iso={last_seen_at} /> : "never"}
        </Text>
      </Group>
      {error && (
        <Alert color="red" mb="md">
          {error}
        </Alert>
      )}
      <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="xl" mb="md">
        <KvUse
          used={replica.num_kv_blocks - replica.num_free_kv_blocks}
          total={replica.num_kv_blocks}
        />
        <Group gap="xl">
          <Load label="Running" value={replica.num_running} />
          <Load label="Waiting" value={replica.num_waiting} />
          <Load label="Adapters" value={adapters.length} />
        </Group>
      </SimpleGrid>
      <Residency adapters={adapters} />
    </Paper>
  );
}
