import { Button } from "@mantine/core";
import { useState } from "react";
import { ConfirmModal } from "@/components/confirm-modal";
import { notifyDone, notifyError } from "@/lib/notify";
import type { Replica } from "@/lib/types";
import { useSetDraining } from "../api/set-draining";

export function DrainReplica({ replica }: { replica: Replica }) {
  const { id, url } = replica;
  const setDraining = useSetDraining(id);
  const [isAsking, setIsAsking] = useState(false);
  const isDraining = replica.draining_since !== null;
  function run(): void {
    setDraining.mutate(!isDraining, {
      onSuccess: () => notifyDone(isDraining ? `${url} takes work again` : `${url} is draining`),
      onError: (error) => notifyError(`Could not change ${url}`, error),
      onSettled: () => setIsAsking(false),
    });
  }
  if (isDraining) {
    return (
      <Button
        size="compact-sm"
        variant="default"
        aria-label={`Resume ${url}`}
        loading={setDraining.isPending}
        onClick={run}
      >
        Resume
      </Button>
    );
  }
  return (
    <>
      <Button
        size="compact-sm"
        variant="subtle"
        aria-label={`Drain ${url}`}
        onClick={() => setIsAsking(true)}
      >
        Drain
      </Button>
      <ConfirmModal
        opened={isAsking}
        title={`Drain ${url}?`}
        confirmLabel="Drain replica"
        isPending={setDraining.isPending}
        onConfirm={run}
        onClose={() => setIsAsking(false)}
      >
        It takes nothing new within a second and ends what it runs. What it holds is placed on the
        other replicas. With none left, requests get a 503.
      </ConfirmModal>
    </>
  );
}
