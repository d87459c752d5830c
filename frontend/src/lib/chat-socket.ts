import * as z from "zod";
import { WS_NOT_AUTHENTICATED } from "@/config/app";
import { parseFrame } from "./events";
import { socketUrl } from "./socket-url";

export interface ChatMessage {
  role: "system" | "user" | "assistant";
  content: string;
}

export interface ChatBody {
  model: string;
  messages: ChatMessage[];
  temperature: number;
  max_tokens: number;
  stream: true;
}

const usageSchema = z.object({
  prompt_tokens: z.number(),
  completion_tokens: z.number(),
  prompt_tokens_details: z.object({ cached_tokens: z.number() }).partial().nullish(),
});
export type ChatUsage = z.infer<typeof usageSchema>;

const errorSchema = z.object({
  message: z.string(),
  type: z.string().nullish(),
  param: z.string().nullish(),
  code: z.union([z.string(), z.number()]).nullish(),
});
export interface ChatError {
  message: string;
  code: string;
}

const chunkSchema = z.object({
  model: z.string().optional(),
  system_fingerprint: z.string().nullish(),
  choices: z.array(
    z.object({
      delta: z.object({ content: z.string().nullish() }).optional(),
      finish_reason: z.string().nullish(),
    }),
  ),
});
export type ChatChunk = z.infer<typeof chunkSchema>;

const frameSchema = z.discriminatedUnion("type", [
  z.object({ type: z.literal("ready") }),
  z.object({ type: z.literal("pong") }),
  z.object({ type: z.literal("chunk"), id: z.string(), data: chunkSchema }),
  z.object({ type: z.literal("done"), id: z.string(), usage: usageSchema.nullish() }),
  z.object({ type: z.literal("error"), id: z.string().nullish(), error: errorSchema }),
]);

/** What one answer's owner is told; exactly one of onDone and onError ends it. */
export interface ChatListener {
  onChunk: (chunk: ChatChunk) => void;
  onDone: (usage: ChatUsage | undefined) => void;
  onError: (error: ChatError) => void;
}

/** One socket that carries many answers at once; opened by the first, reopened after a loss. */
export class ChatSocket {
  private readonly tenant: string;
  private readonly listeners = new Map<string, ChatListener>();
  private socket: WebSocket | undefined;
  private isReady = false;
  private queue: string[] = [];
  private nextId = 1;

  constructor(tenant: string) {
    this.tenant = tenant;
  }

  /** Starts an answer and returns its id, by which it may be cancelled. */
  chat(body: ChatBody, listener: ChatListener): string {
    const id = `c${this.nextId}`;
    this.nextId += 1;
    this.listeners.set(id, listener);
    this.send({ type: "chat", id, body });
    return id;
  }

  cancel(id: string): void {
    if (this.listeners.has(id)) this.send({ type: "cancel", id });
  }

  close(): void {
    this.listeners.clear();
    this.queue = [];
    this.isReady = false;
    this.socket?.close();
    this.socket = undefined;
  }

  private send(frame: object): void {
    const text = JSON.stringify(frame);
    if (this.isReady) this.socket?.send(text);
    else this.queue.push(text);
    this.socket ??= this.open();
  }

  private open(): WebSocket {
    const socket = new WebSocket(socketUrl("/ws/v1/chat"));
    socket.onopen = () => socket.send(JSON.stringify({ type: "auth", tenant: this.tenant }));
    socket.onmessage = (message) => this.onFrame(parseFrame(message.data));
    socket.onclose = (event) => {
      if (this.socket === socket) this.onClose(event.code);
    };
    return socket;
  }

  private onFrame(raw: unknown): void {
    const parsed = frameSchema.safeParse(raw);
    if (!parsed.success) return;
    const frame = parsed.data;
    if (frame.type === "ready") this.onReady();
    else if (frame.type === "error") this.onErrorFrame(frame.id, frame.error);
    else if (frame.type === "chunk") this.listeners.get(frame.id)?.onChunk(frame.data);
    else if (frame.type === "done") this.take(frame.id)?.onDone(frame.usage ?? undefined);
  }

  private onReady(): void {
    this.isReady = true;
    for (const text of this.queue.splice(0)) this.socket?.send(text);
  }

  private onErrorFrame(id: string | null | undefined, error: z.infer<typeof errorSchema>): void {
    const told = { message: error.message, code: String(error.code ?? error.type ?? "error") };
    if (id) this.take(id)?.onError(told);
    else this.failAll(told);
  }

  private onClose(code: number): void {
    this.socket = undefined;
    this.isReady = false;
    this.queue = [];
    const message =
      code === WS_NOT_AUTHENTICATED
        ? "Not signed in any more. Sign in again to go on."
        : "The connection closed before the answer was complete. Send again to reconnect.";
    this.failAll({ message, code: `connection_closed_${code}` });
  }

  private take(id: string): ChatListener | undefined {
    const listener = this.listeners.get(id);
    this.listeners.delete(id);
    return listener;
  }

  private failAll(error: ChatError): void {
    for (const id of [...this.listeners.keys()]) this.take(id)?.onError(error);
  }
}
