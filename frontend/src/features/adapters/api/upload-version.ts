import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import * as z from "zod";
import { type Progress, upload } from "@/lib/upload";
import { adaptersKey } from "./list-adapters";

/** Either the two files of PEFT or a zip that holds them. */
export type VersionFiles =
  { kind: "pair"; config: File; weights: File } | { kind: "archive"; archive: File };

export function formOf(files: VersionFiles): FormData {
  const form = new FormData();
  if (files.kind === "archive") {
    form.append("archive", files.archive);
  } else {
    form.append("config", files.config);
    form.append("weights", files.weights);
  }
  return form;
}

const answerSchema = z.object({ number: z.number() });

interface Upload {
  name: string;
  files: VersionFiles;
  signal: AbortSignal;
}

export function useUploadVersion(tenant: string) {
  const queryClient = useQueryClient();
  const [progress, setProgress] = useState<Progress>();
  const mutation = useMutation({
    mutationFn: async ({ name, files, signal }: Upload) => {
      const path = `/api/tenants/${tenant}/adapters/${encodeURIComponent(name)}/versions/`;
      const options = { signal, onProgress: setProgress };
      return answerSchema.parse(await upload(path, formOf(files), options));
    },
    onSuccess: () => queryClient.invalidateQueries({ queryKey: adaptersKey(tenant) }),
    onSettled: () => setProgress(undefined),
  });
  return { ...mutation, progress };
}
