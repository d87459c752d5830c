import { useQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { TextLink } from "@/components/link";
import { NotAllowed } from "@/components/not-allowed";
import { PageHeader } from "@/components/page-header";
import { useTitle } from "@/components/use-title";
import { adapterQuery } from "@/features/adapters/api/get-adapter";
import { AdapterDetail } from "@/features/adapters/components/adapter-detail";
import { AdapterHeader } from "@/features/adapters/components/adapter-header";
import { NewVersion } from "@/features/adapters/components/new-version";
import { isNotFound } from "@/lib/errors";
import { usePermissions } from "@/lib/tenant";
import { NotFoundPage } from "../route-states";

const detailRoute = getRouteApi("/signed-in/t/$tenant/adapters/$name");
const uploadRoute = getRouteApi("/signed-in/t/$tenant/adapters/$name/upload");

export function AdapterPage() {
  const { tenant, name } = detailRoute.useParams();
  const { version } = detailRoute.useSearch();
  const { user } = detailRoute.useRouteContext();
  const navigate = detailRoute.useNavigate();
  const leave = useNavigate();
  const { error } = useQuery(adapterQuery(tenant, name));
  useTitle(name, tenant);
  if (isNotFound(error)) return <NotFoundPage />;
  return (
    <>
      <AdapterHeader
        tenant={tenant}
        name={name}
        isOperator={user.is_operator}
        onDeleted={() => void leave({ to: "/t/$tenant/adapters", params: { tenant } })}
      />
      <AdapterDetail
        tenant={tenant}
        name={name}
        selected={version}
        onSelect={(number) =>
          void navigate({ search: { version: number }, replace: true, resetScroll: false })
        }
      />
    </>
  );
}

export function NewVersionPage() {
  const { tenant, name } = uploadRoute.useParams();
  const navigate = useNavigate();
  const permissions = usePermissions(tenant);
  useTitle("New version", name);
  if (!permissions.has("adapters")) return <NotAllowed what="upload adapters" />;
  return (
    <>
      <PageHeader
        title="New version"
        description={
          <>
            Of{" "}
            <TextLink to="/t/$tenant/adapters/$name" params={{ tenant, name }} fz="inherit">
              {name}
            </TextLink>
            . The version that serves now goes on serving until you activate the new one.
          </>
        }
      />
      <NewVersion
        tenant={tenant}
        name={name}
        onUploaded={(_, version) =>
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
