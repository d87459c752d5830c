import { IconKey } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { EmptyState } from "@/components/empty-state";
import { ErrorNotice } from "@/components/error-notice";
import { TableSkeleton } from "@/components/table-card";
import { keysQuery } from "../api/list-keys";
import { KeysTable } from "./keys-table";

export function KeysList({ tenant }: { tenant: string }) {
  const { data, error, refetch } = useQuery(keysQuery(tenant));
  if (error) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (!data) return <TableSkeleton rows={3} />;
  if (data.count === 0) {
    return (
      <EmptyState icon={<IconKey size={26} />} title="No keys yet">
        A key lets your programs call <code>/v1</code> with any OpenAI client. Make one for each
        place that uses it, so that each can be revoked alone.
      </EmptyState>
    );
  }
  return <KeysTable tenant={tenant} keys={data.results} />;
}
