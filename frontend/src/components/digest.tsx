import { Group, Text, Tooltip } from "@mantine/core";
import { shortDigest } from "@/lib/format";
import { CopyButton } from "./copy-button";

export function Digest({ digest }: { digest: string }) {
  return (
    <Group gap={2} wrap="nowrap">
      <Tooltip label={`sha256 ${digest}`}>
        <Text component="span" ff="monospace" fz="xs">
          {shortDigest(digest)}
        </Text>
      </Tooltip>
      <CopyButton value={digest} label="Copy digest" />
    </Group>
  );
}
