import { Modal } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { notifyDone } from "@/lib/notify";
import { usePermissions } from "@/lib/tenant";
import type { Key } from "@/lib/types";
import { useChangeKey } from "../api/change-key";
import { modelNamesQuery } from "../api/list-model-names";
import { SCOPES } from "../scopes";
import { KeyForm } from "./key-form";

interface EditKeyProps {
  tenant: string;
  apiKey: Key;
  onClose: () => void;
}

export function EditKey({ tenant, apiKey, onClose }: EditKeyProps) {
  const permissions = usePermissions(tenant);
  const { data: modelNames = [] } = useQuery(modelNamesQuery(tenant));
  const change = useChangeKey(tenant, apiKey.public_id);
  return (
    <Modal opened onClose={onClose} title={`Edit ${apiKey.name}`} size="lg">
      <KeyForm
        apiKey={apiKey}
        scopes={SCOPES.filter(({ value }) => permissions.has(value))}
        modelNames={modelNames}
        isPending={change.isPending}
        error={change.error}
        onSubmit={(values) =>
          change.mutate(values, {
            onSuccess: () => {
              notifyDone(`Saved ${values.name}; it holds within a second`);
              onClose();
            },
          })
        }
      />
    </Modal>
  );
}
