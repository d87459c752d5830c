import { ActionIcon, Avatar, Menu, Text } from "@mantine/core";
import { IconLogout } from "@tabler/icons-react";
import { notifyError } from "@/lib/notify";
import type { User } from "@/lib/types";
import { useSignOut } from "../api/sign-out";

interface UserMenuProps {
  user: User;
  role: string | undefined;
  onSignedOut: () => void;
}

export function UserMenu({ user, role, onSignedOut }: UserMenuProps) {
  const signOut = useSignOut();
  return (
    <Menu position="bottom-end" width={220}>
      <Menu.Target>
        <ActionIcon size={34} radius="xl" aria-label={`Account of ${user.login}`}>
          <Avatar size={30} name={user.login} color="graft" />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label>
          <Text fz="sm" c="var(--mantine-color-text)" fw={550} truncate>
            {user.login}
          </Text>
          <Text fz="xs">{role ?? (user.is_operator ? "Operator" : "")}</Text>
        </Menu.Label>
        <Menu.Divider />
        <Menu.Item
          leftSection={<IconLogout size={16} />}
          onClick={() =>
            signOut.mutate(undefined, {
              onSuccess: onSignedOut,
              onError: (error) => notifyError("Could not sign out", error),
            })
          }
        >
          Sign out
        </Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}
