import { Button, Modal } from "@mantine/core";
import { IconPlus } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { usePermissions } from "@/lib/tenant";
import { useCreateKey } from "../api/create-key";
import { modelNamesQuery } from "../api/list-model-names";
import { SCOPES } from "../scopes";
import { KeyForm } from "./key-form";
import { KeySecret } from "./key-secret";

export function CreateKey({ tenant }: { tenant: string }) {
  const permissions = usePermissions(tenant);
  const create = useCreateKey(tenant);
  const [isOpen, setIsOpen] = useState(false);
  const { data: modelNames = [] } = useQuery({ ...modelNamesQuery(tenant), enabled: isOpen });
  function close(): void {
    setIsOpen(false);
    // The only copy of the secret in this page goes with the dialog.
    create.reset();
  }
  if (!permissions.has("keys")) return null;
  return (
    <>
      <Button leftSection={<IconPlus size={16} />} onClick={() => setIsOpen(true)}>
        New key
      </Button>
      <Modal
        opened={isOpen}
        onClose={close}
        title={create.data ? "Copy the key now" : "New API key"}
        // A stray click must not lose a secret that cannot be shown again.
        closeOnClickOutside={!create.data}
        closeOnEscape={!create.data}
        size="lg"
      >
        {create.data ? (
          <KeySecret created={create.data} onDone={close} />
        ) : (
          <KeyForm
            scopes={SCOPES.filter(({ value }) => permissions.has(value))}
            modelNames={modelNames}
            isPending={create.isPending}
            error={create.error}
            onSubmit={(values) => create.mutate(values)}
          />
        )}
      </Modal>
    </>
  );
}
