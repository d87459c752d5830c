import { Button, Group, NumberInput, SimpleGrid, Stack, Textarea } from "@mantine/core";
import { useForm } from "@mantine/form";
import { ErrorNotice } from "@/components/error-notice";
import type { Profile } from "@/lib/types";
import { NUMBERS, profileOf, valuesOf } from "../profile";

interface ProfileFormProps {
  profile: Profile;
  isPending: boolean;
  error: Error | null;
  onSubmit: (profile: Profile) => void;
}

export function ProfileForm({ profile, isPending, error, onSubmit }: ProfileFormProps) {
  const form = useForm({ initialValues: valuesOf(profile) });
  return (
    <form
      aria-label="Serving profile"
      onSubmit={form.onSubmit((values) => onSubmit(profileOf(values)))}
    >
      <Stack gap="md">
        <Textarea
          label="System prompt"
          description="Sent first when a request’s messages have no system message."
          autosize
          minRows={3}
          maxRows={12}
          data-autofocus
          {...form.getInputProps("system_prompt")}
        />
        <Textarea
          label="Stop words"
          description="One a line, at most 4; \n is a line break. Added to the request’s own."
          autosize
          minRows={2}
          maxRows={4}
          styles={{ input: { fontFamily: "var(--mantine-font-family-monospace)" } }}
          spellCheck={false}
          {...form.getInputProps("stop")}
        />
        <SimpleGrid cols={{ base: 2, xs: 3 }} spacing="md">
          {NUMBERS.map(({ name, label, min, max, ...number }) => (
            <NumberInput
              key={name}
              label={label}
              placeholder="not set"
              min={min}
              max={max}
              step={"step" in number ? number.step : 1}
              allowDecimal={"step" in number}
              allowNegative={min < 0}
              clampBehavior="none"
              {...form.getInputProps(name)}
            />
          ))}
        </SimpleGrid>
        <Textarea
          label="Chat template"
          description="Jinja, in place of the base model’s own. It is tried before it is kept."
          placeholder="not set"
          autosize
          minRows={1}
          maxRows={10}
          styles={{ input: { fontFamily: "var(--mantine-font-family-monospace)" } }}
          spellCheck={false}
          {...form.getInputProps("chat_template")}
        />
        {error && <ErrorNotice title="Could not save it" error={error} />}
        <Group justify="flex-end">
          <Button type="submit" loading={isPending}>
            Save
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
