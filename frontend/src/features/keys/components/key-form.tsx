import { Button, Checkbox, Group, Select, Stack, TagsInput, TextInput } from "@mantine/core";
import { isNotEmpty, useForm } from "@mantine/form";
import { ErrorNotice } from "@/components/error-notice";
import type { Key, NewKey } from "@/lib/types";
import { limitsOf, limitValuesOf, NO_LIMITS } from "../limits";
import { expiryOf, LIFETIMES, type Scope } from "../scopes";
import { LimitFields } from "./limit-fields";

const KEPT = "kept";

interface KeyFormProps {
  /** The one to change; without it a new one is made. */
  apiKey?: Key;
  /** Those that its maker has: a key cannot be given more. */
  scopes: Scope[];
  modelNames: string[];
  isPending: boolean;
  error: Error | null;
  onSubmit: (values: NewKey) => void;
}

function startOf(apiKey: Key | undefined) {
  return {
    name: apiKey?.name ?? "",
    scopes: apiKey?.scopes ?? (["inference"] as NewKey["scopes"]),
    allowed_models: apiKey?.allowed_models ?? [],
    lifetimeDays: apiKey ? KEPT : "",
    limits: apiKey ? limitValuesOf(apiKey) : NO_LIMITS,
  };
}

type Values = ReturnType<typeof startOf>;

function keyOf({ name, scopes, allowed_models, lifetimeDays, limits }: Values): NewKey {
  const end = lifetimeDays === KEPT ? {} : { expires_at: expiryOf(lifetimeDays) };
  return { name, scopes, allowed_models, ...end, ...limitsOf(limits) };
}

export function KeyForm(props: KeyFormProps) {
  const { apiKey, scopes: offered, modelNames, isPending, error, onSubmit } = props;
  const form = useForm({
    initialValues: startOf(apiKey),
    validate: {
      name: isNotEmpty("Give the key a name"),
      scopes: (scopes) => (scopes.length === 0 ? "Choose at least one scope" : null),
    },
  });
  // A replaced key ends with its overlap.
  const canEnd = apiKey?.state !== "replaced";
  return (
    <form
      aria-label={apiKey ? "API key" : "New API key"}
      onSubmit={form.onSubmit((values) => onSubmit(keyOf(values)))}
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
        <TagsInput
          label="Models"
          description="What it may ask for: adapters with all their versions, aliases, the base model. To it, others do not exist. Make an adapter before a key for it."
          placeholder={form.values.allowed_models.length === 0 ? "all of them" : undefined}
          data={modelNames}
          clearable
          acceptValueOnBlur
          {...form.getInputProps("allowed_models")}
        />
        <LimitFields form={form} />
        {canEnd && (
          <Select
            label="Expires"
            data={apiKey ? [{ value: KEPT, label: "As it does now" }, ...LIFETIMES] : LIFETIMES}
            allowDeselect={false}
            maw={200}
            {...form.getInputProps("lifetimeDays")}
          />
        )}
        {error && (
          <ErrorNotice title={`Could not ${apiKey ? "change" : "create"} the key`} error={error} />
        )}
        <Group justify="flex-end">
          <Button type="submit" loading={isPending}>
            {apiKey ? "Save" : "Create key"}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
