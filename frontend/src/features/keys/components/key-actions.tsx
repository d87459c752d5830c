import { ActionIcon, Menu } from "@mantine/core";
import { IconBan, IconDots, IconPencil, IconRotate } from "@tabler/icons-react";
import { useState } from "react";
import { usePermissions } from "@/lib/tenant";
import type { Key } from "@/lib/types";
import { EditKey } from "./edit-key";
import { RevokeKey } from "./revoke-key";
import { RotateKey } from "./rotate-key";

const DIALOGS = { edit: EditKey, rotate: RotateKey, revoke: RevokeKey };

export function KeyActions({ tenant, apiKey }: { tenant: string; apiKey: Key }) {
  const permissions = usePermissions(tenant);
  const [opened, setOpened] = useState<keyof typeof DIALOGS | null>(null);
  if (!permissions.has("keys")) return null;
  const isActive = apiKey.state === "active";
  const Dialog = opened && DIALOGS[opened];
  return (
    <>
      <Menu position="bottom-end" width={160}>
        <Menu.Target>
          <ActionIcon variant="subtle" color="gray" aria-label={`Actions of ${apiKey.name}`}>
            <IconDots size={18} />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          {apiKey.state !== "expired" && (
            <Menu.Item leftSection={<IconPencil size={16} />} onClick={() => setOpened("edit")}>
              Edit
            </Menu.Item>
          )}
          {isActive && (
            <Menu.Item leftSection={<IconRotate size={16} />} onClick={() => setOpened("rotate")}>
              Rotate
            </Menu.Item>
          )}
          <Menu.Item
            color="red"
            leftSection={<IconBan size={16} />}
            onClick={() => setOpened("revoke")}
          >
            Revoke
          </Menu.Item>
        </Menu.Dropdown>
      </Menu>
      {Dialog && <Dialog tenant={tenant} apiKey={apiKey} onClose={() => setOpened(null)} />}
    </>
  );
}
