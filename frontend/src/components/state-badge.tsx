import { Badge, Loader } from "@mantine/core";
import type { VersionState } from "@/lib/types";

interface Look {
  label: string;
  color: string;
  isWorking?: boolean;
}

const LOOKS: Record<VersionState, Look> = {
  uploaded: { label: "Uploaded", color: "blue", isWorking: true },
  validating: { label: "Validating", color: "blue", isWorking: true },
  rejected: { label: "Rejected", color: "red" },
  ready: { label: "Ready", color: "gray" },
  activating: { label: "Activating", color: "yellow", isWorking: true },
  active: { label: "Active", color: "graft" },
  failed: { label: "Failed", color: "red" },
  retired: { label: "Retired", color: "gray" },
};

export function isWorking(state: VersionState): boolean {
  return LOOKS[state].isWorking ?? false;
}

export function StateBadge({ state }: { state: VersionState }) {
  const look = LOOKS[state];
  const dot = (
    <span
      style={{ width: 6, height: 6, borderRadius: 3, background: "currentColor", display: "block" }}
    />
  );
  return (
    <Badge
      color={look.color}
      leftSection={look.isWorking ? <Loader size={9} color="currentColor" /> : dot}
    >
      {look.label}
    </Badge>
  );
}
