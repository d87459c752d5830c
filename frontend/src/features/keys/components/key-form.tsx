import { Button, Checkbox, Group, Select, Stack, TextInput } from "@mantine/core";
import { isNotEmpty, useForm } from "@mantine/form";
import { ErrorNotice } from "@/components/error-notice";
import type { NewKey } from "@/lib/types";
import { expiryOf, LIFETIMES, type Scope } from "../scopes";

interface KeyFormProps {
  /** Those that its maker has: a key cannot be given more. */
  scopes: Scope[];
  isPending: boolean;
  error: Error | null;
  onSubmit: (values: NewKey) => void;
}

interface Values {
  name: string;
  scopes: NewKey["scopes"];
  lifetimeDays: string;
}

const START: Values = { name: "", scopes: ["inference"], lifetimeDays: "" };

export function KeyForm({ scopes: offered, isPending, error, onSubmit }: KeyFormProps) {
  const form = useForm({
    initialValues: START,
    validate: {
      name: isNotEmpty("Give the key a name"),
      scopes: (scopes) => (scopes.length === 0 ? "Choose at least one scope" : null),
    },
  });
  return (
    <form
      aria-label="New API key"
      onSubmit={form.onSubmit(({ name, scopes, lifetimeDays }) =>
        onSubmit({ name, scopes, expires_at: expiryOf(lifetimeDays) }),
      )}
    >
      <Stack gap="md">
        <TextInput
          label="Name"
          description="Where it will be used, so that you know what stops when you revoke it."
          placeholder="production backend"
          data-autofocus
          {...form.getInputProps("name")}
        />
        <Checkbox.Group label="Scopes" {...form.getInputProps("scopes")}>
          <Stack gap={8} mt={6}>
            {offered.map(({ value, label, description }) => (
              <Checkbox key={value} value={value} label={label} description={description} />
            ))}
          </Stack>
        </Checkbox.Group>
        <Select
          label="Expires"
          data={LIFETIMES}
          allowDeselect={false}
          maw={200}
          {...form.getInputProps("lifetimeDays")}
        />
        {error && <ErrorNotice title="Could not create the key" error={error} />}
        <Group justify="flex-end">
          <Button type="submit" loading={isPending}>
            Create key
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
