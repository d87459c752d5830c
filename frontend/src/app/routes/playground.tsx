import { IconMessages } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { EmptyState } from "@/components/empty-state";
import { ErrorNotice } from "@/components/error-notice";
import { LinkButton } from "@/components/link";
import { NotAllowed } from "@/components/not-allowed";
import { PageHeader } from "@/components/page-header";
import { TableSkeleton } from "@/components/table-card";
import { useTitle } from "@/components/use-title";
import { adaptersQuery } from "@/features/adapters/api/list-adapters";
import { versionsQuery } from "@/features/adapters/api/list-versions";
import { Playground } from "@/features/playground/components/playground";
import { BASE, type Duel } from "@/features/playground/duel";
import { usePermissions } from "@/lib/tenant";
import type { Adapter } from "@/lib/types";

const route = getRouteApi("/signed-in/t/$tenant/playground");

function PlaygroundBody({ tenant, adapters }: { tenant: string; adapters: Adapter[] }) {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const { session } = route.useRouteContext();
  const chosen = adapters.find(({ name }) => name === search.adapter) ?? adapters[0];
  const adapter = chosen?.name ?? "";
  const { data: versions } = useQuery({
    ...versionsQuery(tenant, adapter),
    enabled: adapter !== "",
  });
  const duel: Duel = { adapter, version: search.version, against: search.against ?? BASE };
  function change({ against, ...rest }: Duel): void {
    void navigate({
      search: { ...rest, against: against === BASE ? undefined : against },
      replace: true,
    });
  }
  return (
    <Playground
      tenant={tenant}
      baseModel={session.base_model}
      adapters={adapters}
      versions={versions ?? []}
      duel={duel}
      onDuel={change}
    />
  );
}

function NothingToTry({ tenant }: { tenant: string }) {
  return (
    <EmptyState
      icon={<IconMessages size={26} />}
      title="Nothing to try yet"
      action={
        <LinkButton to="/t/$tenant/adapters" params={{ tenant }}>
          Go to the adapters
        </LinkButton>
      }
    >
      As soon as one of your adapters has an active version, it answers here beside the base model.
    </EmptyState>
  );
}

function AdaptersToTry({ tenant }: { tenant: string }) {
  const { data, error, refetch } = useQuery(adaptersQuery(tenant));
  if (error) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (!data) return <TableSkeleton />;
  const servable = data.results.filter(({ active_version }) => active_version !== null);
  if (servable.length === 0) return <NothingToTry tenant={tenant} />;
  return <PlaygroundBody tenant={tenant} adapters={servable} />;
}

export function PlaygroundPage() {
  const { tenant } = route.useParams();
  const permissions = usePermissions(tenant);
  useTitle("Playground", tenant);
  return (
    <>
      <PageHeader
        title="Playground"
        description="See what an adapter changes: the same prompt to two models, side by side."
      />
      {permissions.has("inference") ? (
        <AdaptersToTry tenant={tenant} />
      ) : (
        <NotAllowed what="send requests to models" />
      )}
    </>
  );
}
