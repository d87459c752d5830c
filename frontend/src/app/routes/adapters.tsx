import { IconPlus } from "@tabler/icons-react";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { LinkButton } from "@/components/link";
import { PageHeader } from "@/components/page-header";
import { useTitle } from "@/components/use-title";
import { AdaptersList } from "@/features/adapters/components/adapters-list";
import { NewAdapter } from "@/features/adapters/components/new-adapter";

const listRoute = getRouteApi("/signed-in/t/$tenant/adapters");
const newRoute = getRouteApi("/signed-in/t/$tenant/adapters/new");

export function AdaptersPage() {
  const { tenant } = listRoute.useParams();
  const { q } = listRoute.useSearch();
  const navigate = listRoute.useNavigate();
  useTitle("Adapters", tenant);
  return (
    <>
      <PageHeader
        title="Adapters"
        description="What is grafted onto the base model, and which version of it serves."
        actions={
          <LinkButton
            to="/t/$tenant/adapters/new"
            params={{ tenant }}
            leftSection={<IconPlus size={16} />}
          >
            New adapter
          </LinkButton>
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
  useTitle("New adapter", tenant);
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
