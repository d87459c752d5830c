import { Paper, Stack, TextInput } from "@mantine/core";
import { useForm } from "@mantine/form";
import { useRef } from "react";
import { ErrorNotice } from "@/components/error-notice";
import { useCreateAdapter } from "../api/create-adapter";
import { VersionUpload } from "./version-upload";

const NAME = /^[a-z0-9][a-z0-9._-]*$/;

function checkName(name: string): string | null {
  if (name === "") return "Give the adapter a name";
  if (!NAME.test(name))
    return "Lower-case letters, digits, “.”, “_” and “-”, a letter or digit first";
  return name.length > 63 ? "At most 63 characters" : null;
}

interface NewAdapterProps {
  tenant: string;
  onUploaded: (name: string, number: number) => void;
}

export function NewAdapter({ tenant, onUploaded }: NewAdapterProps) {
  const create = useCreateAdapter(tenant);
  // A failed upload must not make the same adapter twice when it is tried again.
  const created = useRef<string>(undefined);
  const form = useForm({
    initialValues: { name: "", description: "" },
    validate: { name: checkName },
  });

  async function prepare(): Promise<string | undefined> {
    if (form.validate().hasErrors) return undefined;
    const { name, description } = form.values;
    if (created.current === name) return name;
    try {
      await create.mutateAsync({ name, description });
    } catch {
      return undefined;
    }
    created.current = name;
    return name;
  }

  return (
    <Paper p={{ base: "md", sm: "lg" }} maw={680}>
      <Stack gap="md">
        <TextInput
          label="Name"
          description="Clients send it as “model”. It cannot be changed later."
          placeholder="support-bot"
          autoComplete="off"
          styles={{ input: { fontFamily: "var(--mantine-font-family-monospace)" } }}
          spellCheck={false}
          required
          {...form.getInputProps("name")}
        />
        <TextInput
          label="Description"
          description="What it is for, so that colleagues know."
          placeholder="Turns order mails into strict JSON"
          {...form.getInputProps("description")}
        />
        {create.isError && <ErrorNotice title="Could not create it" error={create.error} />}
        <VersionUpload tenant={tenant} prepare={prepare} onUploaded={onUploaded} />
      </Stack>
    </Paper>
  );
}
