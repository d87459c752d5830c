import { ActionIcon, Breadcrumbs, Menu, Text } from "@mantine/core";
import { IconDots, IconMessages, IconTrash, IconUpload } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { ConfirmModal } from "@/components/confirm-modal";
import { LinkButton, TextLink } from "@/components/link";
import { PageHeader } from "@/components/page-header";
import { notifyDone, notifyError } from "@/lib/notify";
import { usePermissions } from "@/lib/tenant";
import { useDeleteAdapter } from "../api/delete-adapter";
import { adapterQuery } from "../api/get-adapter";

interface AdapterHeaderProps {
  tenant: string;
  name: string;
  onDeleted: () => void;
}

function DeleteMenu({ tenant, name, onDeleted }: AdapterHeaderProps) {
  const remove = useDeleteAdapter(tenant);
  const [isAsking, setIsAsking] = useState(false);
  function run(): void {
    remove.mutate(name, {
      onSuccess: () => {
        notifyDone(`Deleted ${name}`);
        onDeleted();
      },
      onError: (error) => notifyError(`Could not delete ${name}`, error),
      onSettled: () => setIsAsking(false),
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
          <Menu.Item
            color="red"
            leftSection={<IconTrash size={16} />}
            onClick={() => setIsAsking(true)}
          >
            Delete adapter
          </Menu.Item>
        </Menu.Dropdown>
      </Menu>
      <ConfirmModal
        opened={isAsking}
        title={`Delete ${name}?`}
        confirmLabel="Delete adapter"
        isDangerous
        isPending={remove.isPending}
        onConfirm={run}
        onClose={() => setIsAsking(false)}
      >
        Requests for <b>{name}</b> get a 404 at once, with all its versions. What it has used stays
        in the ledger.
      </ConfirmModal>
    </>
  );
}

export function AdapterHeader(props: AdapterHeaderProps) {
  const { tenant, name } = props;
  const { data: adapter } = useQuery(adapterQuery(tenant, name));
  const permissions = usePermissions(tenant);
  return (
    <PageHeader
      title={name}
      description={adapter?.description}
      above={
        <Breadcrumbs mb={6} fz="sm" separator="/">
          <TextLink to="/t/$tenant/adapters" params={{ tenant }} fz="sm" c="dimmed">
            Adapters
          </TextLink>
          <Text c="dimmed" fz="sm">
            {name}
          </Text>
        </Breadcrumbs>
      }
      actions={
        <>
          {permissions.has("inference") && (
            <LinkButton
              to="/t/$tenant/playground"
              params={{ tenant }}
              search={{ adapter: name }}
              variant="default"
              leftSection={<IconMessages size={16} />}
            >
              Try it
            </LinkButton>
          )}
          {permissions.has("adapters") && (
            <>
              <LinkButton
                to="/t/$tenant/adapters/$name/upload"
                params={{ tenant, name }}
                leftSection={<IconUpload size={16} />}
              >
                New version
              </LinkButton>
              <DeleteMenu {...props} />
            </>
          )}
        </>
      }
    />
  );
}
