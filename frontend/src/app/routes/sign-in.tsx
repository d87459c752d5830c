import { Center, Paper, Stack, Text, Title } from "@mantine/core";
import { getRouteApi, useRouter } from "@tanstack/react-router";
import { Logo } from "@/components/logo";
import { useTitle } from "@/components/use-title";
import { SignInForm } from "@/features/session/components/sign-in-form";

const route = getRouteApi("/sign-in");

/** Only a path of our own: an address from outside must not lead a fresh session away. */
function safeNext(next: string | undefined): string {
  return next?.startsWith("/") && !/^\/[/\\]/.test(next) ? next : "/";
}

export function SignInPage() {
  const router = useRouter();
  const { next } = route.useSearch();
  useTitle("Sign in");
  return (
    <Center component="main" mih="100dvh" p="md">
      <Stack w="100%" maw={380} gap="lg">
        <Stack align="center" gap={6}>
          <Logo size={34} fz="xl" />
          <Text c="dimmed" ta="center">
            One base model, many adapters.
          </Text>
        </Stack>
        <Paper p="xl" shadow="xs">
          <Title order={1} fz="lg" mb="md">
            Sign in
          </Title>
          <SignInForm onSignedIn={() => router.history.push(safeNext(next))} />
        </Paper>
      </Stack>
    </Center>
  );
}
