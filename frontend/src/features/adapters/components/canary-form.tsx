import { Button, Group, NumberInput, Select, Stack } from "@mantine/core";
import { isInRange, useForm } from "@mantine/form";
import { ErrorNotice } from "@/components/error-notice";
import type { NewCanary } from "../api/set-canary";

interface CanaryFormProps {
  /** The versions it may be; of a running one its own. */
  numbers: number[];
  percent: number;
  submitLabel: string;
  isPending: boolean;
  error: Error | null;
  onSubmit: (canary: NewCanary) => void;
}

export function CanaryForm(props: CanaryFormProps) {
  const { numbers, isPending, error, onSubmit } = props;
  const form = useForm({
    initialValues: { version: String(numbers[0]), percent: props.percent as number | string },
    validate: { percent: isInRange({ min: 1, max: 99 }, "1 to 99") },
  });
  const versions = numbers.map((number) => ({ value: String(number), label: `Version ${number}` }));
  return (
    <form
      aria-label="Canary"
      onSubmit={form.onSubmit(({ version, percent }) =>
        onSubmit({ version: Number(version), percent: Number(percent) }),
      )}
    >
      <Stack gap="md">
        {numbers.length > 1 && (
          <Select
            label="Version"
            data={versions}
            allowDeselect={false}
            {...form.getInputProps("version")}
          />
        )}
        <NumberInput
          label="Share of end users"
          description="An end user is “safety_identifier” or “user” of a request, else its key. Who has the canary keeps it while the share grows."
          suffix=" %"
          min={1}
          max={99}
          allowDecimal={false}
          clampBehavior="none"
          {...form.getInputProps("percent")}
        />
        {error && <ErrorNotice title="Could not save it" error={error} />}
        <Group justify="flex-end">
          <Button type="submit" loading={isPending}>
            {props.submitLabel}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
