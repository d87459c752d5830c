import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { uploadInParts } from "@/lib/parted-upload";
import type { Progress } from "@/lib/upload";
import { pack, type VersionFiles } from "../pack";
import { adaptersKey } from "./list-adapters";

interface Upload {
  name: string;
  files: VersionFiles;
  signal: AbortSignal;
}

export function useUploadVersion(tenant: string) {
  const queryClient = useQueryClient();
  const [progress, setProgress] = useState<Progress>();
  const mutation = useMutation({
    mutationFn: ({ name, files, signal }: Upload) =>
      uploadInParts(tenant, name, pack(files), { signal, onProgress: setProgress }),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: adaptersKey(tenant) }),
    onSettled: () => setProgress(undefined),
  });
  return { ...mutation, progress };
}
