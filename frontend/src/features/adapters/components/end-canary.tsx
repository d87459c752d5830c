import { Button, Group } from "@mantine/core";
import { useState } from "react";
import { ConfirmModal } from "@/components/confirm-modal";
import { notifyDone, notifyError } from "@/lib/notify";
import { useSetCanary } from "../api/set-canary";
import { useStopCanary } from "../api/stop-canary";

interface EndCanaryProps {
  tenant: string;
  name: string;
  version: number;
  isRunning: boolean;
}

/** Promote asks first, since it is for everyone; stopping gives everyone what most have. */
export function EndCanary({ tenant, name, version, isRunning }: EndCanaryProps) {
  const set = useSetCanary(tenant, name);
  const stop = useStopCanary(tenant, name);
  const [isAsking, setIsAsking] = useState(false);
  function promote(): void {
    set.mutate(
      { version, percent: 100 },
      {
        onSuccess: () => notifyDone(`Activating ${name} v${version}`),
        onError: (error) => notifyError(`Could not promote v${version}`, error),
        onSettled: () => setIsAsking(false),
      },
    );
  }
  return (
    <Group justify="flex-end" gap="xs">
      <Button
        size="compact-sm"
        variant="default"
        loading={stop.isPending}
        onClick={() =>
          stop.mutate(undefined, {
            onSuccess: () => notifyDone(`Stopped the canary of ${name}`),
            onError: (error) => notifyError("Could not stop the canary", error),
          })
        }
      >
        Stop
      </Button>
      {isRunning && (
        <Button size="compact-sm" onClick={() => setIsAsking(true)}>
          Promote v{version}
        </Button>
      )}
      <ConfirmModal
        opened={isAsking}
        title={`Promote v${version}?`}
        confirmLabel={`Promote v${version}`}
        isPending={set.isPending}
        onConfirm={promote}
        onClose={() => setIsAsking(false)}
      >
        All requests for <b>{name}</b> go to v{version}. The version that is active now stays ready
        to return to.
      </ConfirmModal>
    </Group>
  );
}
