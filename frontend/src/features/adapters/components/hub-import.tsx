import { Button, Group, PasswordInput, SimpleGrid, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { ErrorNotice } from "@/components/error-notice";
import { useImportVersion } from "../api/import-version";

const REPO = /^[\w.-]+\/[\w.-]+$/;

interface HubImportProps {
  tenant: string;
  prepare: () => Promise<string | undefined>;
  onImported: (name: string, number: number) => void;
}

export function HubImport({ tenant, prepare, onImported }: HubImportProps) {
  const [repoId, setRepoId] = useState("");
  const [revision, setRevision] = useState("");
  const [token, setToken] = useState("");
  const load = useImportVersion(tenant);

  async function start(): Promise<void> {
    const name = await prepare();
    if (name === undefined) return;
    load.mutate(
      { name, repoId: repoId.trim(), revision: revision.trim() || "main", token },
      { onSuccess: (number) => onImported(name, number) },
    );
  }

  return (
    <Stack gap="sm">
      <SimpleGrid cols={{ base: 1, sm: 3 }}>
        <TextInput
          label="Hugging Face repository"
          placeholder="owner/adapter"
          autoComplete="off"
          spellCheck={false}
          value={repoId}
          onChange={(event) => setRepoId(event.currentTarget.value)}
        />
        <TextInput
          label="Revision"
          placeholder="main"
          autoComplete="off"
          spellCheck={false}
          value={revision}
          onChange={(event) => setRevision(event.currentTarget.value)}
        />
        <PasswordInput
          label="Token"
          placeholder="If private; not kept"
          autoComplete="off"
          value={token}
          onChange={(event) => setToken(event.currentTarget.value)}
        />
      </SimpleGrid>
      {load.isError && <ErrorNotice title="The import failed" error={load.error} />}
      <Group justify="flex-end">
        <Button
          variant="default"
          disabled={!REPO.test(repoId.trim())}
          loading={load.isPending}
          onClick={() => void start()}
        >
          Import and validate
        </Button>
      </Group>
    </Stack>
  );
}
