import { Button, Menu, Text } from "@mantine/core";
import { IconCheck, IconPin } from "@tabler/icons-react";
import { notifyDone, notifyError } from "@/lib/notify";
import type { Adapter } from "@/lib/types";
import { useSetKeep } from "../api/set-keep";

interface Choice {
  keep: Adapter["keep"];
  label: string;
  explained: string;
  done: string;
}

const CHOICES: Choice[] = [
  {
    keep: "pinned",
    label: "Pin to the device",
    explained: "It stays on the device of its replicas.",
    done: "Pinned",
  },
  {
    keep: "warm",
    label: "Keep warm",
    explained: "It stays in host memory, a copy away.",
    done: "Keeping warm:",
  },
  {
    keep: "no",
    label: "As requests come",
    explained: "Idle, it makes room for others.",
    done: "As requests come:",
  },
];

interface KeepMenuProps {
  tenant: string;
  adapter: Adapter;
}

/** For operators: how near the device replicas keep the active version. */
export function KeepMenu({ tenant, adapter }: KeepMenuProps) {
  const set = useSetKeep(tenant, adapter.name);
  function choose({ keep, done }: Choice): void {
    set.mutate(keep, {
      onSuccess: () => notifyDone(`${done} ${adapter.name}`),
      onError: (error) => notifyError(`Could not change how ${adapter.name} is kept`, error),
    });
  }
  return (
    <Menu position="bottom-end" width={280}>
      <Menu.Target>
        <Button variant="default" leftSection={<IconPin size={16} />} loading={set.isPending}>
          Keep
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        {CHOICES.map((choice) => (
          <Menu.Item
            key={choice.keep}
            disabled={choice.keep === adapter.keep}
            rightSection={choice.keep === adapter.keep && <IconCheck size={16} />}
            onClick={() => choose(choice)}
          >
            {choice.label}
            <Text fz="xs" c="dimmed">
              {choice.explained}
            </Text>
          </Menu.Item>
        ))}
      </Menu.Dropdown>
    </Menu>
  );
}
