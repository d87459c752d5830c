import { Badge, Group, Tooltip } from "@mantine/core";
import { shortDigest } from "@/lib/format";
import type { Held } from "../load";

/** The nearer to the device, the stronger the colour. */
const COLORS: Record<string, string> = {
  device: "graft",
  host: "blue",
  failed: "red",
  pending: "yellow",
  loading: "yellow",
};

function hintOf({ digest, where, rank, error }: Held): string {
  const parts = [digest, rank === undefined ? "" : `rank ${rank}`, where, error ?? ""];
  return parts.filter((part) => part !== "").join(" · ");
}

export function Residency({ held }: { held: Held[] }) {
  if (held.length === 0) return null;
  return (
    <Group component="ul" gap={6} p={0} m={0} aria-label="Adapters held">
      {held.map((adapter) => (
        <li key={adapter.digest} style={{ listStyle: "none" }}>
          <Tooltip label={hintOf(adapter)} multiline maw={420}>
            <Badge ff="monospace" color={COLORS[adapter.where] ?? "gray"}>
              {shortDigest(adapter.digest)} · {adapter.where}
            </Badge>
          </Tooltip>
        </li>
      ))}
    </Group>
  );
}
