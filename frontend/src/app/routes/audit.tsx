import { getRouteApi } from "@tanstack/react-router";
import { PageHeader } from "@/components/page-header";
import { useTitle } from "@/components/use-title";
import { AuditTable } from "@/features/audit/components/audit-table";

const route = getRouteApi("/signed-in/t/$tenant/audit");

export function AuditPage() {
  const { tenant } = route.useParams();
  const { page } = route.useSearch();
  const navigate = route.useNavigate();
  useTitle("Audit log", tenant);
  return (
    <>
      <PageHeader
        title="Audit log"
        description="Who did what. Written in the same transaction as the deed, and never changed."
      />
      <AuditTable
        tenant={tenant}
        page={page ?? 1}
        onPage={(next) => void navigate({ search: { page: next === 1 ? undefined : next } })}
      />
    </>
  );
}
