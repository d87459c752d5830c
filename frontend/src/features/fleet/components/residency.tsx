import { Badge, Group, Tooltip } from "@mantine/core";
import { shortDigest } from "@/lib/format";
import type { Replica } from "@/lib/types";

/** Where a replica holds each adapter's weights: nearest to the device is the strongest colour. */
const COLORS: Record<string, string> = { device: "graft", host: "blue", disk: "gray" };

export function Residency({ adapters }: { adapters: Replica["adapters"] }) {
  if (adapters.length === 0) return null;
  return (
    <Group component="ul" gap={6} p={0} m={0} aria-label="Resident adapters">
      {adapters.map(({ digest, tier, rank }) => (
        <li key={digest} style={{ listStyle: "none" }}>
          <Tooltip label={`${digest} · rank ${rank} · ${tier}`}>
            <Badge ff="monospace" color={COLORS[tier] ?? "gray"}>
              {shortDigest(digest)} · {tier}
            </Badge>
          </Tooltip>
        </li>
      ))}
    </Group>
  );
}
