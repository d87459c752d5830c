import { ActionIcon, Group, Paper, Text, Tooltip } from "@mantine/core";
import { IconCircleCheck, IconCircleDashed, IconX } from "@tabler/icons-react";
import { CONFIG_FILE, WEIGHTS_FILE } from "@/config/app";
import { formatBytes } from "@/lib/format";
import type { Picked } from "../pick-files";

interface SlotProps {
  expected: string;
  file: File | undefined;
  onRemove: () => void;
}

function Slot({ expected, file, onRemove }: SlotProps) {
  return (
    <Paper px="sm" py={8}>
      <Group gap="sm" wrap="nowrap">
        {file ? (
          <IconCircleCheck size={18} color="var(--mantine-color-graft-6)" />
        ) : (
          <IconCircleDashed size={18} opacity={0.45} />
        )}
        <Text ff="monospace" fz="xs" flex={1} truncate c={file ? undefined : "dimmed"}>
          {file?.name ?? expected}
        </Text>
        <Text c="dimmed" fz="xs">
          {file ? formatBytes(file.size) : "missing"}
        </Text>
        {file && (
          <Tooltip label="Remove">
            <ActionIcon size="sm" aria-label={`Remove ${file.name}`} onClick={onRemove}>
              <IconX size={14} />
            </ActionIcon>
          </Tooltip>
        )}
      </Group>
    </Paper>
  );
}

interface PickedFilesProps {
  picked: Picked;
  onChange: (picked: Picked) => void;
}

export function PickedFiles({ picked, onChange }: PickedFilesProps) {
  const { config, weights, archive, templates = [] } = picked;
  if (archive) return <Slot expected="adapter.zip" file={archive} onRemove={() => onChange({})} />;
  if (!config && !weights && templates.length === 0) return null;
  const without = (change: Picked): void => onChange({ config, weights, templates, ...change });
  return (
    <>
      <Slot expected={CONFIG_FILE} file={config} onRemove={() => without({ config: undefined })} />
      <Slot
        expected={WEIGHTS_FILE}
        file={weights}
        onRemove={() => without({ weights: undefined })}
      />
      {templates.map((file) => (
        <Slot
          key={file.name}
          expected={file.name}
          file={file}
          onRemove={() => without({ templates: templates.filter((other) => other !== file) })}
        />
      ))}
    </>
  );
}
