import { Grid, Stack } from "@mantine/core";
import { IconPackage } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { EmptyState } from "@/components/empty-state";
import { ErrorNotice } from "@/components/error-notice";
import { LinkButton } from "@/components/link";
import { TableSkeleton } from "@/components/table-card";
import { usePermissions } from "@/lib/tenant";
import type { VersionState } from "@/lib/types";
import { adapterQuery } from "../api/get-adapter";
import { versionsQuery } from "../api/list-versions";
import { AliasesCard } from "./aliases-card";
import { CanaryCard } from "./canary-card";
import { EvaluationCard } from "./evaluation-card";
import { ProfileCard } from "./profile-card";
import { UseIt } from "./use-it";
import { VersionPanel } from "./version-panel";
import { VersionsTable } from "./versions-table";

/** What lies in the store, and can be measured. */
const PUBLISHED: ReadonlySet<VersionState> = new Set(["ready", "activating", "active"]);

interface AdapterDetailProps {
  tenant: string;
  name: string;
  /** The version the address names; without one, the newest. */
  selected: number | undefined;
  onSelect: (number: number) => void;
}

export function AdapterDetail({ tenant, name, selected, onSelect }: AdapterDetailProps) {
  const { data: versions, error, refetch } = useQuery(versionsQuery(tenant, name));
  const { data: adapter } = useQuery(adapterQuery(tenant, name));
  if (error) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (!versions) return <TableSkeleton />;
  const shown = versions.find((version) => version.number === selected) ?? versions[0];
  if (!shown) return <NoVersions tenant={tenant} name={name} />;
  // The adapter's name answers only while a version is active; until then a snippet is a 404.
  const isServed = versions.some((version) => version.state === "active");
  return (
    <Stack gap="md">
      <VersionsTable
        tenant={tenant}
        name={name}
        versions={versions}
        selected={shown.number}
        onSelect={onSelect}
      />
      <Grid gap="md">
        <Grid.Col span={{ base: 12, lg: 7 }}>
          <Stack gap="md">
            <VersionPanel tenant={tenant} name={name} version={shown} />
            {PUBLISHED.has(shown.state) && (
              <EvaluationCard tenant={tenant} name={name} version={shown} />
            )}
            {shown.state !== "rejected" && (
              <ProfileCard tenant={tenant} name={name} number={shown.number} />
            )}
          </Stack>
        </Grid.Col>
        <Grid.Col span={{ base: 12, lg: 5 }}>
          <Stack gap="md">
            {adapter && <CanaryCard tenant={tenant} adapter={adapter} versions={versions} />}
            {isServed && <UseIt tenant={tenant} model={name} />}
            <AliasesCard tenant={tenant} name={name} versions={versions} />
          </Stack>
        </Grid.Col>
      </Grid>
    </Stack>
  );
}

function NoVersions({ tenant, name }: { tenant: string; name: string }) {
  const permissions = usePermissions(tenant);
  return (
    <EmptyState
      icon={<IconPackage size={26} />}
      title="No version yet"
      action={
        permissions.has("adapters") && (
          <LinkButton to="/t/$tenant/adapters/$name/upload" params={{ tenant, name }}>
            Upload a version
          </LinkButton>
        )
      }
    >
      The name is taken, but nothing has been uploaded under it. Requests for <b>{name}</b> get a
      404 until a version is active.
    </EmptyState>
  );
}
