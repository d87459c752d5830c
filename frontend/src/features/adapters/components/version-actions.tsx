import { Button } from "@mantine/core";
import { useState } from "react";
import { ConfirmModal } from "@/components/confirm-modal";
import { notifyDone, notifyError } from "@/lib/notify";
import { usePermissions } from "@/lib/tenant";
import type { Version } from "@/lib/types";
import { useActivateVersion } from "../api/activate-version";
import { useRetryVersion } from "../api/retry-version";

interface VersionActionsProps {
  tenant: string;
  name: string;
  version: Version;
  active: Version | undefined;
}

function ActivateButton({ tenant, name, version, active }: VersionActionsProps) {
  const activate = useActivateVersion(tenant, name);
  const [isAsking, setIsAsking] = useState(false);
  const isRollback = active !== undefined && version.number < active.number;
  const label = isRollback ? "Roll back" : "Activate";
  function run(): void {
    activate.mutate(version.number, {
      onSuccess: () => notifyDone(`Activating ${name} v${version.number}`),
      onError: (error) => notifyError(`Could not activate v${version.number}`, error),
      onSettled: () => setIsAsking(false),
    });
  }
  return (
    <>
      <Button
        size="compact-sm"
        variant={isRollback ? "default" : "light"}
        aria-label={isRollback ? `Roll back to v${version.number}` : `Activate v${version.number}`}
        loading={activate.isPending}
        onClick={() => (isRollback ? setIsAsking(true) : run())}
      >
        {label}
      </Button>
      <ConfirmModal
        opened={isAsking}
        title={`Roll back to v${version.number}?`}
        confirmLabel={`Roll back to v${version.number}`}
        isPending={activate.isPending}
        onConfirm={run}
        onClose={() => setIsAsking(false)}
      >
        New requests for <b>{name}</b> go to v{version.number} as soon as its replicas hold it.
        Answers that are being streamed finish on v{active?.number ?? "–"}, which stays ready to
        return to.
      </ConfirmModal>
    </>
  );
}

function RetryButton({ tenant, name, version }: VersionActionsProps) {
  const retry = useRetryVersion(tenant, name);
  return (
    <Button
      size="compact-sm"
      variant="default"
      aria-label={`Retry v${version.number}`}
      loading={retry.isPending}
      onClick={() =>
        retry.mutate(version.number, {
          onError: (error) => notifyError(`Could not retry v${version.number}`, error),
        })
      }
    >
      Retry
    </Button>
  );
}

export function VersionActions(props: VersionActionsProps) {
  const permissions = usePermissions(props.tenant);
  if (!permissions.has("adapters")) return null;
  const { state } = props.version;
  if (state === "ready" || state === "retired") return <ActivateButton {...props} />;
  if (state === "failed") return <RetryButton {...props} />;
  return null;
}
