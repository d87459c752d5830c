import { SimpleGrid, Stack } from "@mantine/core";
import { IconServer } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { EmptyState } from "@/components/empty-state";
import { ErrorNotice } from "@/components/error-notice";
import { Stat } from "@/components/stat";
import { TableSkeleton } from "@/components/table-card";
import { formatCount } from "@/lib/format";
import type { Replica } from "@/lib/types";
import { fleetQuery } from "../api/get-fleet";
import { type Load, loadOf } from "../load";
import { ReplicaCard } from "./replica-card";

function sum(loads: Load[], of: (load: Load) => number): number {
  return loads.reduce((total, load) => total + of(load), 0);
}

function FleetTotals({ replicas }: { replicas: Replica[] }) {
  const numHealthy = replicas.filter((replica) => replica.healthy).length;
  const loads = replicas.map(loadOf);
  const digests = new Set(loads.flatMap(({ adapters }) => adapters.map(({ digest }) => digest)));
  return (
    <SimpleGrid cols={{ base: 2, md: 4 }} spacing="sm">
      <Stat label="Healthy replicas" value={`${numHealthy} of ${replicas.length}`} />
      <Stat label="Running" value={formatCount(sum(loads, (load) => load.num_running))} />
      <Stat label="Waiting" value={formatCount(sum(loads, (load) => load.num_waiting))} />
      <Stat label="Adapters resident" value={formatCount(digests.size)} />
    </SimpleGrid>
  );
}

export function FleetOverview() {
  const { data, error, refetch } = useQuery(fleetQuery());
  if (error) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (!data) return <TableSkeleton rows={4} />;
  if (data.results.length === 0) {
    return (
      <EmptyState icon={<IconServer size={26} />} title="No replicas">
        Name the inference processes in <code>REPLICA_URLS</code>. Until one is healthy, requests
        get a 503.
      </EmptyState>
    );
  }
  return (
    <Stack gap="md">
      <FleetTotals replicas={data.results} />
      {data.results.map((replica) => (
        <ReplicaCard key={replica.id} replica={replica} />
      ))}
    </Stack>
  );
}
