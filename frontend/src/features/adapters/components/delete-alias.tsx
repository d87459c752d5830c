import { Button } from "@mantine/core";
import { useState } from "react";
import { ConfirmModal } from "@/components/confirm-modal";
import { notifyDone, notifyError } from "@/lib/notify";
import type { Alias } from "@/lib/types";
import { useDeleteAlias } from "../api/delete-alias";

export function DeleteAlias({ tenant, alias }: { tenant: string; alias: Alias }) {
  const remove = useDeleteAlias(tenant);
  const [isAsking, setIsAsking] = useState(false);
  function run(): void {
    remove.mutate(alias.name, {
      onSuccess: () => notifyDone(`Deleted ${alias.name}`),
      onError: (error) => notifyError(`Could not delete ${alias.name}`, error),
      onSettled: () => setIsAsking(false),
    });
  }
  return (
    <>
      <Button
        size="compact-sm"
        variant="subtle"
        color="red"
        aria-label={`Delete ${alias.name}`}
        onClick={() => setIsAsking(true)}
      >
        Delete
      </Button>
      <ConfirmModal
        opened={isAsking}
        title={`Delete ${alias.name}?`}
        confirmLabel="Delete alias"
        isDangerous
        isPending={remove.isPending}
        onConfirm={run}
        onClose={() => setIsAsking(false)}
      >
        Requests for <b>{alias.name}</b> get a 404 within a second. The adapter stays.
      </ConfirmModal>
    </>
  );
}
