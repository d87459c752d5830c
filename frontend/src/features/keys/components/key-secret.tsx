import { Alert, Button, Group, Stack } from "@mantine/core";
import { IconEyeOff } from "@tabler/icons-react";
import { CodeBlock } from "@/components/code-block";
import type { KeyCreated } from "@/lib/types";

export function KeySecret({ created, onDone }: { created: KeyCreated; onDone: () => void }) {
  return (
    <Stack gap="md">
      <Alert
        color="yellow"
        icon={<IconEyeOff size={18} />}
        title="This is the only time it is shown"
      >
        We keep a hash of it, not the key. If it gets lost, revoke it and make another.
      </Alert>
      <CodeBlock code={created.secret} label="API key" isFocused />
      <Group justify="flex-end">
        <Button onClick={onDone}>I have stored it</Button>
      </Group>
    </Stack>
  );
}
