import { Button } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { notifyDone, notifyError } from "@/lib/notify";
import { usePermissions } from "@/lib/tenant";
import type { Version } from "@/lib/types";
import { adapterQuery } from "../api/get-adapter";
import { useRetireVersion } from "../api/retire-version";

interface RetireVersionProps {
  tenant: string;
  name: string;
  version: Version;
}

/** Of one that is ready and no canary: the server says no to what is in use. Activating it undoes it. */
export function RetireVersion({ tenant, name, version }: RetireVersionProps) {
  const retire = useRetireVersion(tenant, name);
  const permissions = usePermissions(tenant);
  const { data: adapter } = useQuery(adapterQuery(tenant, name));
  if (!permissions.has("adapters") || version.state !== "ready") return null;
  if (!adapter || adapter.canary?.version === version.number) return null;
  return (
    <Button
      size="compact-sm"
      variant="subtle"
      color="gray"
      aria-label={`Retire v${version.number}`}
      loading={retire.isPending}
      onClick={() =>
        retire.mutate(version.number, {
          onSuccess: () => notifyDone(`Retired ${name} v${version.number}`),
          onError: (error) => notifyError(`Could not retire v${version.number}`, error),
        })
      }
    >
      Retire
    </Button>
  );
}
