import { useMutation, useQueryClient } from "@tanstack/react-query";
import { IMPORT_POLL_MS } from "@/config/app";
import { api, unwrap } from "@/lib/api";
import { ApiError } from "@/lib/errors";
import { adaptersKey } from "./list-adapters";

interface Import {
  name: string;
  repoId: string;
  revision: string;
  token: string;
}

async function importVersion(
  tenant: string,
  { name, repoId, revision, token }: Import,
): Promise<number> {
  const path = { tenant, name };
  const body = { repo_id: repoId, revision, token };
  let state = await unwrap(
    api.POST("/api/tenants/{tenant}/adapters/{name}/imports/", { params: { path }, body }),
  );
  while (state.status === "queued" || state.status === "running") {
    await new Promise((resolve) => setTimeout(resolve, IMPORT_POLL_MS));
    const one = { params: { path: { ...path, import_id: state.id } } };
    state = await unwrap(
      api.GET("/api/tenants/{tenant}/adapters/{name}/imports/{import_id}/", one),
    );
  }
  if (state.version === null) throw new ApiError(0, state.error_code, state.error);
  return state.version;
}

/** Settles when the repository's files have become a version, with its number. */
export function useImportVersion(tenant: string) {
  const queryClient = useQueryClient();
  return useMutation({
    mutationFn: (asked: Import) => importVersion(tenant, asked),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: adaptersKey(tenant) }),
  });
}
