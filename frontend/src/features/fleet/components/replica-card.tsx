import { Alert, Badge, Group, Paper, Progress, SimpleGrid, Text, Title } from "@mantine/core";
import { RelativeTime } from "@/components/relative-time";
import { formatCount } from "@/lib/format";
import type { Replica } from "@/lib/types";
import { heldBy, loadOf } from "../load";
import { DrainReplica } from "./drain-replica";
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

function Figure({ label, value }: { label: string; value: number }) {
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
  const { url, dialect, healthy, error, last_seen, draining_since } = replica;
  const load = loadOf(replica);
  const held = heldBy(replica, load);
  return (
    <Paper p="md" component="section" aria-label={`Replica ${url}`}>
      <Group justify="space-between" mb="md">
        <Group gap="sm">
          <Title order={2} ff="monospace" fz="sm">
            {url}
          </Title>
          <Badge color={healthy ? "graft" : "red"}>{healthy ? "Healthy" : "Not healthy"}</Badge>
          {draining_since && (
            <Badge color="yellow" title={`By ${replica.drained_by}`}>
              Draining
            </Badge>
          )}
        </Group>
        <Group gap="sm">
          <Text fz="xs" c="dimmed">
            {load.model !== "" && `${load.model} · `}
            {dialect !== "grafthouse" && `${dialect} · `}seen{" "}
            {last_seen ? <RelativeTime iso={last_seen} /> : "never"}
          </Text>
          <DrainReplica replica={replica} />
        </Group>
      </Group>
      {error && (
        <Alert color="red" mb="md">
          {error}
        </Alert>
      )}
      <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="xl" mb="md">
        <KvUse used={load.num_kv_blocks - load.num_free_kv_blocks} total={load.num_kv_blocks} />
        <Group gap="xl">
          <Figure label="Running" value={load.num_running} />
          <Figure label="Waiting" value={load.num_waiting} />
          <Figure label="Adapters" value={load.adapters.length} />
        </Group>
      </SimpleGrid>
      <Residency held={held} />
    </Paper>
  );
}
