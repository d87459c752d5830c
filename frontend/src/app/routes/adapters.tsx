import { IconPlus } from "@tabler/icons-react";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { LinkButton } from "@/components/link";
import { NotAllowed } from "@/components/not-allowed";
import { PageHeader } from "@/components/page-header";
import { useTitle } from "@/components/use-title";
import { AdaptersList } from "@/features/adapters/components/adapters-list";
import { NewAdapter } from "@/features/adapters/components/new-adapter";
import { usePermissions } from "@/lib/tenant";

const listRoute = getRouteApi("/signed-in/t/$tenant/adapters");
const newRoute = getRouteApi("/signed-in/t/$tenant/adapters/new");

export function AdaptersPage() {
  const { tenant } = listRoute.useParams();
  const { q } = listRoute.useSearch();
  const navigate = listRoute.useNavigate();
  const permissions = usePermissions(tenant);
  useTitle("Adapters", tenant);
  return (
    <>
      <PageHeader
        title="Adapters"
        description="What is grafted onto the base model, and which version of it serves."
        actions={
          permissions.has("adapters") && (
            <LinkButton
              to="/t/$tenant/adapters/new"
              params={{ tenant }}
              leftSection={<IconPlus size={16} />}
            >
              New adapter
            </LinkButton>
          )
        }
      />
      <AdaptersList
        tenant={tenant}
        search={q ?? ""}
        onSearch={(text) => void navigate({ search: { q: text || undefined }, replace: true })}
      />
    </>
  );
}

export function NewAdapterPage() {
  const { tenant } = newRoute.useParams();
  const navigate = useNavigate();
  const permissions = usePermissions(tenant);
  useTitle("New adapter", tenant);
  if (!permissions.has("adapters")) return <NotAllowed what="upload adapters" />;
  return (
    <>
      <PageHeader
        title="New adapter"
        description="Name it and upload its first version. It is validated before anything serves it."
      />
      <NewAdapter
        tenant={tenant}
        onUploaded={(name, version) =>
          void navigate({
            to: "/t/$tenant/adapters/$name",
            params: { tenant, name },
            search: { version },
          })
        }
      />
    </>
  );
}
