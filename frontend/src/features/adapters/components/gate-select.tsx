import { NativeSelect } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { notifyError } from "@/lib/notify";
import type { Gate } from "@/lib/types";
import { gateQuery, useSetGate } from "../api/gate";

const GATES: { value: Gate; label: string }[] = [
  { value: "off", label: "Any version may be activated" },
  { value: "base", label: "Only one that is no worse than the base" },
  { value: "base_with_prompt", label: "Only one that is no worse than the base with a prompt" },
];

interface GateSelectProps {
  tenant: string;
  name: string;
  canChange: boolean;
}

/** Of the adapter, whichever version is looked at. */
export function GateSelect({ tenant, name, canChange }: GateSelectProps) {
  const { data: gate } = useQuery(gateQuery(tenant, name));
  const change = useSetGate(tenant, name);
  if (gate === undefined) return null;
  return (
    <NativeSelect
      label="Gate"
      description="By the latest evaluation on this eval set. Rolling back is never barred."
      data={GATES}
      value={gate}
      disabled={!canChange || change.isPending}
      onChange={(event) =>
        change.mutate(event.currentTarget.value as Gate, {
          onError: (error) => notifyError("Could not change the gate", error),
        })
      }
    />
  );
}
