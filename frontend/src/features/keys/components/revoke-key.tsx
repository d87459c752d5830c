import { Button } from "@mantine/core";
import { useState } from "react";
import { ConfirmModal } from "@/components/confirm-modal";
import { notifyDone, notifyError } from "@/lib/notify";
import { usePermissions } from "@/lib/tenant";
import type { Key } from "@/lib/types";
import { useRevokeKey } from "../api/revoke-key";

export function RevokeKey({ tenant, apiKey }: { tenant: string; apiKey: Key }) {
  const permissions = usePermissions(tenant);
  const revoke = useRevokeKey(tenant);
  const [isAsking, setIsAsking] = useState(false);
  function run(): void {
    revoke.mutate(apiKey.public_id, {
      onSuccess: () => notifyDone(`Revoked ${apiKey.name}`),
      onError: (error) => notifyError(`Could not revoke ${apiKey.name}`, error),
      onSettled: () => setIsAsking(false),
    });
  }
  if (!permissions.has("keys")) return null;
  return (
    <>
      <Button
        size="compact-sm"
        variant="subtle"
        color="red"
        aria-label={`Revoke ${apiKey.name}`}
        onClick={() => setIsAsking(true)}
      >
        Revoke
      </Button>
      <ConfirmModal
        opened={isAsking}
        title={`Revoke ${apiKey.name}?`}
        confirmLabel="Revoke key"
        isDangerous
        isPending={revoke.isPending}
        onConfirm={run}
        onClose={() => setIsAsking(false)}
      >
        Requests with this key are refused with a 401 within a second. This cannot be undone.
      </ConfirmModal>
    </>
  );
}
