import { getRouteApi } from "@tanstack/react-router";
import { PageHeader } from "@/components/page-header";
import { useTitle } from "@/components/use-title";
import { CreateKey } from "@/features/keys/components/create-key";
import { KeysList } from "@/features/keys/components/keys-list";

const route = getRouteApi("/signed-in/t/$tenant/keys");

export function KeysPage() {
  const { tenant } = route.useParams();
  useTitle("API keys", tenant);
  return (
    <>
      <PageHeader
        title="API keys"
        description="For programs. A key belongs to this tenant and can do what its scopes say."
        actions={<CreateKey tenant={tenant} />}
      />
      <KeysList tenant={tenant} />
    </>
  );
}
