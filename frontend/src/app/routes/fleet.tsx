import { Stack } from "@mantine/core";
import { PageHeader } from "@/components/page-header";
import { useTitle } from "@/components/use-title";
import { FleetEvents } from "@/features/fleet/components/fleet-events";
import { FleetOverview } from "@/features/fleet/components/fleet-overview";

export function FleetPage() {
  useTitle("Fleet");
  return (
    <>
      <PageHeader
        title="Fleet"
        description="The inference replicas as the gateway sees them: health, load, and which adapters they hold."
      />
      <Stack gap="md">
        <FleetOverview />
        <FleetEvents />
      </Stack>
    </>
  );
}
