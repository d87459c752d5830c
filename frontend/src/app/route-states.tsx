import { Button, Center, Stack, Text, Title } from "@mantine/core";
import { type ErrorComponentProps, useRouter } from "@tanstack/react-router";
import { ErrorNotice } from "@/components/error-notice";
import { LinkButton } from "@/components/link";
import { LogoMark } from "@/components/logo";

export function NotFoundPage() {
  return (
    <Center mih="60vh" p="md">
      <Stack align="center" gap="xs" ta="center">
        <LogoMark size={40} />
        <Title order={1} mt="sm">
          There is nothing here
        </Title>
        <Text c="dimmed" maw={420}>
          The address is wrong, what it named was deleted, or it belongs to a tenant that you are
          not a member of.
        </Text>
        <LinkButton to="/" variant="default" mt="sm">
          Go to the start
        </LinkButton>
      </Stack>
    </Center>
  );
}

export function RouteError({ error, reset }: ErrorComponentProps) {
  const router = useRouter();
  function retry(): void {
    reset();
    void router.invalidate();
  }
  return (
    <Center mih="60vh" p="md">
      <Stack maw={520} w="100%">
        <ErrorNotice title="This page broke" error={error} />
        <Button variant="default" onClick={retry} style={{ alignSelf: "flex-start" }}>
          Try again
        </Button>
      </Stack>
    </Center>
  );
}
