import type { QueryClient } from "@tanstack/react-query";
import * as z from "zod";
import {
  SOCKET_PING_MS,
  SOCKET_RETRY_MAX_MS,
  SOCKET_RETRY_MIN_MS,
  WS_NOT_AUTHENTICATED,
} from "@/config/app";
import { socketUrl } from "./socket-url";
import { createInvalidator } from "./stale";

export type EventsStatus = "connecting" | "live" | "offline";

const frameSchema = z.discriminatedUnion("type", [
  z.object({ type: z.literal("ready") }),
  z.object({ type: z.literal("pong") }),
  z.object({ type: z.literal("missed") }),
  z.object({
    type: z.literal("event"),
    event: z.string(),
    data: z.record(z.string(), z.unknown()),
  }),
]);

export interface ServerEvent {
  event: string;
  data: Record<string, unknown>;
}

export interface EventsOptions {
  tenant: string;
  queryClient: QueryClient;
  onStatus: (status: EventsStatus) => void;
  onEvent: (event: ServerEvent) => void;
  onSignedOut: () => void;
}

/**
 * One socket per tenant in view: its events become query invalidations. Reconnects with growing pauses,
 * and after a gap everything of the tenant is stale, since events of that time are lost.
 * Returns the function that closes it for good.
 */
export function connectEvents(options: EventsOptions): () => void {
  const { tenant, queryClient, onStatus, onEvent, onSignedOut } = options;
  const stale = createInvalidator(tenant, queryClient);
  let socket: WebSocket | undefined;
  let closed = false;
  let hadGap = false;
  let delayMs = SOCKET_RETRY_MIN_MS;
  let retry: ReturnType<typeof setTimeout> | undefined;

  function onFrame(raw: unknown): void {
    const frame = frameSchema.safeParse(raw);
    if (!frame.success) return;
    if (frame.data.type === "ready") {
      delayMs = SOCKET_RETRY_MIN_MS;
      onStatus("live");
      if (hadGap) void queryClient.invalidateQueries({ queryKey: [tenant] });
    } else if (frame.data.type === "missed") {
      void queryClient.invalidateQueries({ queryKey: [tenant] });
    } else if (frame.data.type === "event") {
      stale.take(frame.data.event);
      onEvent(frame.data);
    }
  }

  function onClose(code: number): void {
    if (closed) return;
    onStatus("offline");
    hadGap = true;
    if (code === WS_NOT_AUTHENTICATED) {
      onSignedOut();
      return;
    }
    retry = setTimeout(open, delayMs);
    delayMs = Math.min(delayMs * 2, SOCKET_RETRY_MAX_MS);
  }

  function open(): void {
    onStatus("connecting");
    const current = new WebSocket(socketUrl("/ws/v1/events"));
    socket = current;
    current.onopen = () => current.send(JSON.stringify({ type: "auth", tenant }));
    current.onmessage = (message) => onFrame(parseFrame(message.data));
    current.onclose = (event) => onClose(event.code);
  }

  open();
  const ping = setInterval(() => {
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "ping" }));
  }, SOCKET_PING_MS);

  return () => {
    closed = true;
    clearTimeout(retry);
    clearInterval(ping);
    stale.stop();
    socket?.close();
  };
}

export function parseFrame(data: unknown): unknown {
  try {
    return typeof data === "string" ? (JSON.parse(data) as unknown) : undefined;
  } catch {
    return undefined;
  }
}
