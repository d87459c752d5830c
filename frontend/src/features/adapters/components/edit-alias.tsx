import { Button, Modal } from "@mantine/core";
import { useState } from "react";
import { notifyDone } from "@/lib/notify";
import type { Alias, Version } from "@/lib/types";
import { type NewAlias, useCreateAlias } from "../api/create-alias";
import { usePointAlias } from "../api/point-alias";
import { AliasForm } from "./alias-form";

interface EditAliasProps {
  tenant: string;
  name: string;
  versions: Version[];
  /** Without one, a new one is made. */
  alias?: Alias;
}

export function EditAlias({ tenant, name, versions, alias }: EditAliasProps) {
  const create = useCreateAlias(tenant, name);
  const point = usePointAlias(tenant, name);
  const act = alias ? point : create;
  const [isOpen, setIsOpen] = useState(false);
  function close(): void {
    setIsOpen(false);
    act.reset();
  }
  function save(values: NewAlias): void {
    act.mutate(values, {
      onSuccess: () => {
        const target = values.version === null ? name : `${name}@${values.version}`;
        notifyDone(`${values.name} means ${target}`);
        close();
      },
    });
  }
  return (
    <>
      <Button
        size="compact-sm"
        variant={alias ? "subtle" : "default"}
        aria-label={alias ? `Change ${alias.name}` : "New alias"}
        onClick={() => setIsOpen(true)}
      >
        {alias ? "Change" : "New alias"}
      </Button>
      <Modal opened={isOpen} onClose={close} title={alias ? `Alias ${alias.name}` : "New alias"}>
        <AliasForm
          alias={alias}
          versions={versions}
          isPending={act.isPending}
          error={act.error}
          onSubmit={save}
        />
      </Modal>
    </>
  );
}
