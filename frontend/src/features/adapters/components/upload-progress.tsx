import { Button, Group, Progress, Stack, Text } from "@mantine/core";
import { formatBytes } from "@/lib/format";
import type { Progress as UploadState } from "@/lib/upload";

interface UploadProgressProps {
  progress: UploadState | undefined;
  onCancel: () => void;
}

export function UploadProgress({ progress, onCancel }: UploadProgressProps) {
  const { sentBytes, totalBytes, isWaiting } = progress ?? { sentBytes: 0, totalBytes: 0 };
  const percent = totalBytes > 0 ? Math.round((sentBytes / totalBytes) * 100) : 0;
  const isSent = totalBytes > 0 && sentBytes >= totalBytes;
  return (
    <Stack gap={6}>
      <Group justify="space-between">
        <Text fz="sm" className="tabular">
          {isSent
            ? "Sent. Waiting for the server to store it…"
            : `${isWaiting ? "Connection lost, trying again" : "Uploading"}: ${formatBytes(sentBytes)} of ${formatBytes(totalBytes)}`}
        </Text>
        <Button size="compact-xs" variant="subtle" color="gray" onClick={onCancel}>
          Cancel upload
        </Button>
      </Group>
      <Progress.Root size="md">
        <Progress.Section value={percent} animated={isSent} aria-label="Upload progress" />
      </Progress.Root>
    </Stack>
  );
}
