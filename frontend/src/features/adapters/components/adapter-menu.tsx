import { ActionIcon, Menu } from "@mantine/core";
import { IconArchive, IconDots, IconTrash } from "@tabler/icons-react";
import { useState } from "react";
import { ConfirmModal } from "@/components/confirm-modal";
import { notifyDone, notifyError } from "@/lib/notify";
import { useDeleteAdapter } from "../api/delete-adapter";
import { useRetireAdapter } from "../api/retire-adapter";

interface AdapterMenuProps {
  tenant: string;
  name: string;
  isRetired: boolean;
  onDeleted: () => void;
}

/** Ways to stop serving an adapter: both ask first. */
export function AdapterMenu({ tenant, name, isRetired, onDeleted }: AdapterMenuProps) {
  const remove = useDeleteAdapter(tenant);
  const retire = useRetireAdapter(tenant);
  const [asking, setAsking] = useState<"retire" | "delete">();
  const close = () => setAsking(undefined);
  function runDelete(): void {
    remove.mutate(name, {
      onSuccess: () => {
        notifyDone(`Deleted ${name}`);
        onDeleted();
      },
      onError: (error) => notifyError(`Could not delete ${name}`, error),
      onSettled: close,
    });
  }
  function runRetire(): void {
    retire.mutate(name, {
      onSuccess: () => notifyDone(`Retired ${name}`),
      onError: (error) => notifyError(`Could not retire ${name}`, error),
      onSettled: close,
    });
  }
  return (
    <>
      <Menu position="bottom-end">
        <Menu.Target>
          <ActionIcon size={36} variant="default" aria-label="More actions">
            <IconDots size={18} />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          {!isRetired && (
            <Menu.Item leftSection={<IconArchive size={16} />} onClick={() => setAsking("retire")}>
              Retire adapter
            </Menu.Item>
          )}
          <Menu.Item
            color="red"
            leftSection={<IconTrash size={16} />}
            onClick={() => setAsking("delete")}
          >
            Delete adapter
          </Menu.Item>
        </Menu.Dropdown>
      </Menu>
      <ConfirmModal
        opened={asking === "retire"}
        title={`Retire ${name}?`}
        confirmLabel="Retire adapter"
        isPending={retire.isPending}
        onConfirm={runRetire}
        onClose={close}
      >
        Requests for <b>{name}</b> get a 404 that says so, with all its versions. Nothing is
        deleted: activating a version brings it back.
      </ConfirmModal>
      <ConfirmModal
        opened={asking === "delete"}
        title={`Delete ${name}?`}
        confirmLabel="Delete adapter"
        isDangerous
        isPending={remove.isPending}
        onConfirm={runDelete}
        onClose={close}
      >
        Requests for <b>{name}</b> get a 404 at once, with all its versions. What it has used stays
        in the ledger.
      </ConfirmModal>
    </>
  );
}
