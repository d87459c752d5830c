import { Button, Modal } from "@mantine/core";
import { useState } from "react";
import { notifyDone } from "@/lib/notify";
import { type NewCanary, useSetCanary } from "../api/set-canary";
import { CanaryForm } from "./canary-form";

interface EditCanaryProps {
  tenant: string;
  name: string;
  numbers: number[];
  /** Of the one that runs; without it a new one is begun. */
  percent?: number;
}

const FIRST_PERCENT = 10;

export function EditCanary({ tenant, name, numbers, percent }: EditCanaryProps) {
  const set = useSetCanary(tenant, name);
  const [isOpen, setIsOpen] = useState(false);
  const label = percent === undefined ? "Begin canary" : "Change share";
  function close(): void {
    setIsOpen(false);
    set.reset();
  }
  function save(canary: NewCanary): void {
    set.mutate(canary, {
      onSuccess: () => {
        notifyDone(`v${canary.version} for ${canary.percent} % of the end users`);
        close();
      },
    });
  }
  return (
    <>
      <Button size="compact-sm" variant="default" onClick={() => setIsOpen(true)}>
        {label}
      </Button>
      <Modal opened={isOpen} onClose={close} title={label}>
        <CanaryForm
          numbers={numbers}
          percent={percent ?? FIRST_PERCENT}
          submitLabel={label}
          isPending={set.isPending}
          error={set.error}
          onSubmit={save}
        />
      </Modal>
    </>
  );
}
