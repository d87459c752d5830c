import { Alert, Group, Loader, Paper, Stack, Text, Title } from "@mantine/core";
import { IconAlertTriangle } from "@tabler/icons-react";
import { StateBadge } from "@/components/state-badge";
import type { Version, VersionState } from "@/lib/types";
import { ReportView } from "./report-view";
import { RetireVersion } from "./retire-version";
import { ValidationProgressBar } from "./validation-progress";

const EXPLAINED: Record<VersionState, string> = {
  uploaded: "Waiting for a worker to validate it.",
  validating: "Reading the header, the configuration and every tensor. Nothing of it runs.",
  rejected: "It cannot be served. Every reason is below; mend them and upload a new version.",
  ready: "Valid and stored. Activate it to serve it under the adapter’s name.",
  activating:
    "Its replicas are loading it. The former version serves until they report its digest.",
  active: "Serving all requests for this adapter.",
  failed: "Something on our side went wrong, not in your files. Retry it.",
  retired: "Not served any more; its bytes are kept. Activating it brings it back.",
};

const WORKING: ReadonlySet<VersionState> = new Set(["uploaded", "validating", "activating"]);

interface VersionPanelProps {
  tenant: string;
  name: string;
  version: Version;
}

export function VersionPanel({ tenant, name, version }: VersionPanelProps) {
  const { state, report, error } = version;
  return (
    <Paper p="md" component="section" aria-label={`Version ${version.number}`}>
      <Stack gap="md">
        <div>
          <Group justify="space-between">
            <Group gap="sm">
              <Title order={2}>Version {version.number}</Title>
              <StateBadge state={state} />
            </Group>
            <RetireVersion tenant={tenant} name={name} version={version} />
          </Group>
          <Group gap={8} mt={4} aria-live="polite" wrap="nowrap">
            {WORKING.has(state) && <Loader size={14} />}
            <Text c="dimmed">{EXPLAINED[state]}</Text>
          </Group>
        </div>
        {state === "validating" && (
          <ValidationProgressBar tenant={tenant} name={name} number={version.number} />
        )}
        {error && (
          <Alert color="red" icon={<IconAlertTriangle size={18} />} title="What went wrong">
            {error}
          </Alert>
        )}
        <ReportView report={report} />
      </Stack>
    </Paper>
  );
}
