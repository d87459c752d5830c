import { Alert, Button, PasswordInput, Stack, TextInput } from "@mantine/core";
import { isNotEmpty, useForm } from "@mantine/form";
import { messageOf } from "@/lib/errors";
import { useSignIn } from "../api/sign-in";

export function SignInForm({ onSignedIn }: { onSignedIn: () => void }) {
  const signIn = useSignIn();
  const form = useForm({
    mode: "uncontrolled",
    initialValues: { login: "", password: "" },
    validate: {
      login: isNotEmpty("Enter your login"),
      password: isNotEmpty("Enter your password"),
    },
  });
  return (
    <form
      aria-label="Sign in"
      onSubmit={form.onSubmit((values) => signIn.mutate(values, { onSuccess: onSignedIn }))}
    >
      <Stack gap="md">
        {signIn.isError && (
          <Alert color="red" role="alert">
            {messageOf(signIn.error)}
          </Alert>
        )}
        <TextInput
          label="Login"
          autoComplete="username"
          autoCapitalize="none"
          autoFocus
          key={form.key("login")}
          {...form.getInputProps("login")}
        />
        <PasswordInput
          label="Password"
          autoComplete="current-password"
          key={form.key("password")}
          {...form.getInputProps("password")}
        />
        <Button type="submit" fullWidth mt={4} loading={signIn.isPending}>
          Sign in
        </Button>
      </Stack>
    </form>
  );
}
