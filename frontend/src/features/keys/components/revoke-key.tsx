import { ConfirmModal } from "@/components/confirm-modal";
import { notifyDone, notifyError } from "@/lib/notify";
import type { Key } from "@/lib/types";
import { useRevokeKey } from "../api/revoke-key";

interface RevokeKeyProps {
  tenant: string;
  apiKey: Key;
  onClose: () => void;
}

export function RevokeKey({ tenant, apiKey, onClose }: RevokeKeyProps) {
  const revoke = useRevokeKey(tenant);
  function run(): void {
    revoke.mutate(apiKey.public_id, {
      onSuccess: () => notifyDone(`Revoked ${apiKey.name}`),
      onError: (error) => notifyError(`Could not revoke ${apiKey.name}`, error),
      onSettled: onClose,
    });
  }
  return (
    <ConfirmModal
      opened
      title={`Revoke ${apiKey.name}?`}
      confirmLabel="Revoke key"
      isDangerous
      isPending={revoke.isPending}
      onConfirm={run}
      onClose={onClose}
    >
      Requests with this key are refused with a 401 within a second. This cannot be undone.
    </ConfirmModal>
  );
}
