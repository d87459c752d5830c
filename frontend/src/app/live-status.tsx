import { Group, Text, Tooltip } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useRouter } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { takeProgress } from "@/features/adapters/api/validation-progress";
import { SESSION_KEY } from "@/features/session/api/get-session";
import { connectEvents, type EventsStatus } from "@/lib/events";
import { announce } from "./announce";

const LOOKS: Record<EventsStatus, { label: string; color: string; hint: string }> = {
  live: {
    label: "Live",
    color: "var(--mantine-color-graft-5)",
    hint: "Changes show up by themselves",
  },
  connecting: {
    label: "Connecting",
    color: "var(--mantine-color-yellow-6)",
    hint: "Opening the event stream",
  },
  offline: {
    label: "Offline",
    color: "var(--mantine-color-red-6)",
    hint: "Changes may show up late; reconnecting",
  },
};

/** Holds the tenant's one event socket for as long as the tenant is in view. */
export function LiveStatus({ tenant }: { tenant: string }) {
  const queryClient = useQueryClient();
  const router = useRouter();
  const [status, setStatus] = useState<EventsStatus>("connecting");
  useEffect(
    () =>
      connectEvents({
        tenant,
        queryClient,
        onStatus: setStatus,
        onEvent: (told) => {
          announce(told);
          takeProgress(tenant, queryClient, told);
        },
        onSignedOut: () => {
          void queryClient.invalidateQueries({ queryKey: SESSION_KEY, refetchType: "none" });
          void router.invalidate();
        },
      }),
    [tenant, queryClient, router],
  );
  const { label, color, hint } = LOOKS[status];
  return (
    <Tooltip label={hint}>
      <Group gap={7} mr={4} wrap="nowrap" role="status">
        <span style={{ width: 7, height: 7, borderRadius: 4, background: color }} />
        <Text fz="xs" c="dimmed" visibleFrom="sm">
          {label}
        </Text>
      </Group>
    </Tooltip>
  );
}
