import { Button, Group, Select, Stack, TextInput } from "@mantine/core";
import { isNotEmpty, useForm } from "@mantine/form";
import { ErrorNotice } from "@/components/error-notice";
import type { Alias, Version, VersionState } from "@/lib/types";
import type { NewAlias } from "../api/create-alias";

const ACTIVE = "active";
/** Those whose bytes lie in the store. */
const PINNABLE: ReadonlySet<VersionState> = new Set(["ready", "activating", "active"]);

interface AliasFormProps {
  /** The one to point elsewhere; without it a new one is made. */
  alias: Alias | undefined;
  versions: Version[];
  isPending: boolean;
  error: Error | null;
  onSubmit: (alias: NewAlias) => void;
}

export function AliasForm({ alias, versions, isPending, error, onSubmit }: AliasFormProps) {
  const form = useForm({
    initialValues: { name: alias?.name ?? "", target: String(alias?.version ?? ACTIVE) },
    validate: { name: isNotEmpty("Give the alias a name") },
  });
  const pinned = versions
    .filter(({ state, number }) => PINNABLE.has(state) || number === alias?.version)
    .map(({ number }) => ({ value: String(number), label: `Version ${number}` }));
  return (
    <form
      aria-label="Alias"
      onSubmit={form.onSubmit(({ name, target }) =>
        onSubmit({ name, version: target === ACTIVE ? null : Number(target) }),
      )}
    >
      <Stack gap="md">
        <TextInput
          label="Name"
          description="Clients send it as “model”. No adapter and no other alias may have it."
          placeholder="prod"
          autoComplete="off"
          spellCheck={false}
          styles={{ input: { fontFamily: "var(--mantine-font-family-monospace)" } }}
          disabled={alias !== undefined}
          data-autofocus
          {...form.getInputProps("name")}
        />
        <Select
          label="Means"
          description="A version stays on the replicas while an alias names it."
          data={[{ value: ACTIVE, label: "The active version" }, ...pinned]}
          allowDeselect={false}
          {...form.getInputProps("target")}
        />
        {error && <ErrorNotice title="Could not save it" error={error} />}
        <Group justify="flex-end">
          <Button type="submit" loading={isPending}>
            {alias ? "Save" : "Create alias"}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
