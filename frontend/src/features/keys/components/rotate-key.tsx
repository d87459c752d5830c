import { Button, Group, Modal, Select, Stack, Text } from "@mantine/core";
import { useState } from "react";
import { ErrorNotice } from "@/components/error-notice";
import type { Key } from "@/lib/types";
import { useRotateKey } from "../api/rotate-key";
import { DEFAULT_OVERLAP, OVERLAPS } from "../scopes";
import { KeySecret } from "./key-secret";

interface RotateKeyProps {
  tenant: string;
  apiKey: Key;
  onClose: () => void;
}

export function RotateKey({ tenant, apiKey, onClose }: RotateKeyProps) {
  const rotate = useRotateKey(tenant);
  const [overlap, setOverlap] = useState<string>(DEFAULT_OVERLAP);
  const made = rotate.data;
  return (
    <Modal
      opened
      onClose={onClose}
      title={made ? "Copy the new key now" : `Rotate ${apiKey.name}`}
      // A stray click must not lose a secret that cannot be shown again.
      closeOnClickOutside={!made}
      closeOnEscape={!made}
      size="lg"
    >
      {made ? (
        <KeySecret created={made} onDone={onClose} />
      ) : (
        <Stack gap="md">
          <Text fz="sm">
            A new key with the same name, scopes, models and limits takes its place. Both work until
            the overlap ends, within limits that are counted over both.
          </Text>
          <Select
            label="The old key goes on working"
            data={OVERLAPS}
            value={overlap}
            onChange={(value) => setOverlap(value ?? DEFAULT_OVERLAP)}
            allowDeselect={false}
            maw={240}
          />
          {rotate.error && <ErrorNotice title="Could not rotate the key" error={rotate.error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button
              loading={rotate.isPending}
              onClick={() =>
                rotate.mutate({ publicId: apiKey.public_id, overlap_s: Number(overlap) })
              }
            >
              Rotate key
            </Button>
          </Group>
        </Stack>
      )}
    </Modal>
  );
}
