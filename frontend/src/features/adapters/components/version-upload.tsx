import { Alert, Button, Divider, Group, List, Stack, Text } from "@mantine/core";
import { IconUpload } from "@tabler/icons-react";
import { useRef, useState } from "react";
import { Dropzone } from "@/components/dropzone";
import { ErrorNotice } from "@/components/error-notice";
import { CONFIG_FILE, WEIGHTS_FILE } from "@/config/app";
import { useUploadVersion } from "../api/upload-version";
import { completeFiles, type Picked, pickFiles, pickFolder } from "../pick-files";
import { ConfigPreview } from "./config-preview";
import { HubImport } from "./hub-import";
import { PickedFiles } from "./picked-files";
import { UploadProgress } from "./upload-progress";

interface VersionUploadProps {
  tenant: string;
  /** Runs before the bytes are sent: makes the adapter when it is new. Undefined: do not go on. */
  prepare: () => Promise<string | undefined>;
  onUploaded: (name: string, number: number) => void;
}

export function VersionUpload({ tenant, prepare, onUploaded }: VersionUploadProps) {
  const [picked, setPicked] = useState<Picked>({});
  const [refused, setRefused] = useState<string[]>([]);
  const upload = useUploadVersion(tenant);
  const abort = useRef<AbortController>(undefined);
  const files = completeFiles(picked);

  function take(next: ReturnType<typeof pickFiles>): void {
    setPicked(next.picked);
    setRefused(next.refused);
    upload.reset();
  }

  async function send(): Promise<void> {
    if (!files) return;
    const name = await prepare();
    if (name === undefined) return;
    abort.current = new AbortController();
    upload.mutate(
      { name, files, signal: abort.current.signal },
      { onSuccess: (number) => onUploaded(name, number) },
    );
  }

  return (
    <Stack gap="sm">
      <Dropzone
        label="Adapter files"
        accept=".json,.safetensors,.zip,.tar,.tgz,.gz"
        onFiles={(files) => take(pickFiles(picked, files))}
        onFolder={(folder) => take(pickFolder(picked, folder))}
      >
        <IconUpload size={26} stroke={1.5} opacity={0.7} />
        <Text fw={550} mt={4}>
          Drop the adapter or its folder here, or choose files
        </Text>
        <Text c="dimmed" fz="xs">
          <code>{CONFIG_FILE}</code> and <code>{WEIGHTS_FILE}</code> as PEFT saves them, or a .zip,
          .tar or .tar.gz of both
        </Text>
      </Dropzone>
      {refused.length > 0 && (
        <Alert color="yellow" role="alert" title="Not taken">
          <List size="sm">
            {refused.map((reason) => (
              <List.Item key={reason}>{reason}</List.Item>
            ))}
          </List>
        </Alert>
      )}
      <PickedFiles picked={picked} onChange={setPicked} />
      {picked.config && <ConfigPreview config={picked.config} />}
      {upload.isError && <ErrorNotice title="The upload failed" error={upload.error} />}
      {upload.isPending && (
        <UploadProgress progress={upload.progress} onCancel={() => abort.current?.abort()} />
      )}
      <Group justify="flex-end">
        <Button disabled={!files} loading={upload.isPending} onClick={() => void send()}>
          Upload and validate
        </Button>
      </Group>
      <Divider label="or" />
      <HubImport tenant={tenant} prepare={prepare} onImported={onUploaded} />
    </Stack>
  );
}
