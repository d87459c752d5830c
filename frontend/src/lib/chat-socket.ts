import {
  CHAT_RESUME_MS,
  SOCKET_RETRY_MAX_MS,
  SOCKET_RETRY_MIN_MS,
  WS_NOT_AUTHENTICATED,
  WS_TOO_LARGE,
} from "@/config/app";
import {
  type ChatBody,
  type ChatChunk,
  type ChatError,
  type ChatUsage,
  type ErrorFrame,
  frameSchema,
} from "./chat-frames";
import { parseFrame } from "./events";
import { socketUrl } from "./socket-url";

/** What one answer's owner is told; exactly one of onDone and onError ends it. */
export interface ChatListener {
  onChunk: (chunk: ChatChunk) => void;
  onDone: (usage: ChatUsage | undefined) => void;
  onError: (error: ChatError) => void;
  /** The connection is lost, or the answer goes on over another. */
  onLink: (isUp: boolean) => void;
}

interface Running {
  listener: ChatListener;
  /** By which the server knows it: what has none cannot be picked up again. */
  generation?: string;
  /** Of the last frame that arrived. */
  seq: number;
  isCancelled: boolean;
}

const LOST = "The connection closed before the answer was complete. Send again to reconnect.";
const SIGNED_OUT = "Not signed in any more. Sign in again to go on.";

/**
 * One socket that carries many answers at once; opened by the first. When it drops, another is opened and the
 * answers go on where they were, for as long as the server keeps them.
 */
export class ChatSocket {
  private readonly tenant: string;
  private readonly running = new Map<string, Running>();
  private socket: WebSocket | undefined;
  private isReady = false;
  private queue: string[] = [];
  private nextId = 1;
  private droppedMs: number | undefined;
  private delayMs = SOCKET_RETRY_MIN_MS;
  private retry: ReturnType<typeof setTimeout> | undefined;

  constructor(tenant: string) {
    this.tenant = tenant;
  }

  /** Starts an answer and returns its id, by which it may be cancelled. */
  chat(body: ChatBody, listener: ChatListener): string {
    const id = `c${this.nextId}`;
    this.nextId += 1;
    this.running.set(id, { listener, seq: 0, isCancelled: false });
    this.send({ type: "chat", id, resumable: true, body });
    return id;
  }

  cancel(id: string): void {
    const running = this.running.get(id);
    if (!running) return;
    running.isCancelled = true;
    // Else it is picked up first: the server does not know it by this socket.
    if (this.isReady || running.generation === undefined) this.send({ type: "cancel", id });
  }

  close(): void {
    clearTimeout(this.retry);
    this.running.clear();
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
    clearTimeout(this.retry);
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
    else if (frame.type === "error") this.onErrorFrame(frame);
    else if (frame.type === "done") this.take(frame.id)?.onDone(frame.usage ?? undefined);
    else if (frame.type !== "pong") {
      const running = this.running.get(frame.id);
      if (!running) return;
      if (frame.type === "started") running.generation = frame.generation;
      else if (frame.type === "resumed") running.listener.onLink(true);
      else {
        running.seq = frame.seq;
        running.listener.onChunk(frame.data);
      }
    }
  }

  private onReady(): void {
    this.isReady = true;
    this.droppedMs = undefined;
    this.delayMs = SOCKET_RETRY_MIN_MS;
    for (const [id, { generation, seq, isCancelled }] of this.running) {
      if (generation === undefined) continue;
      this.send({ type: "resume", id, generation, after: seq });
      if (isCancelled) this.send({ type: "cancel", id });
    }
    for (const text of this.queue.splice(0)) this.socket?.send(text);
  }

  private onErrorFrame({ id, error }: ErrorFrame): void {
    const code = String(error.code ?? error.type ?? "error");
    const told = { message: code === "generation_not_found" ? LOST : error.message, code };
    if (id) this.take(id)?.onError(told);
    else this.failAll(told);
  }

  private onClose(code: number): void {
    this.socket = undefined;
    this.isReady = false;
    this.queue = [];
    const lost = { message: LOST, code: `connection_closed_${code}` };
    // Whether the server has begun what it gave no name, nobody can tell.
    this.failAll(lost, ({ generation }) => generation === undefined);
    if (code === WS_NOT_AUTHENTICATED) this.failAll({ ...lost, message: SIGNED_OUT });
    // Codes from 4000 on are the server's refusals.
    else if (code > 4000 || code === WS_TOO_LARGE) this.failAll(lost);
    else if (this.running.size > 0) this.reopenLater(lost);
  }

  private reopenLater(lost: ChatError): void {
    const nowMs = performance.now();
    this.droppedMs ??= nowMs;
    if (nowMs - this.droppedMs > CHAT_RESUME_MS) {
      this.failAll(lost);
      return;
    }
    for (const { listener } of this.running.values()) listener.onLink(false);
    this.retry = setTimeout(() => (this.socket ??= this.open()), this.delayMs);
    this.delayMs = Math.min(this.delayMs * 2, SOCKET_RETRY_MAX_MS);
  }

  private take(id: string): ChatListener | undefined {
    const running = this.running.get(id);
    this.running.delete(id);
    return running?.listener;
  }

  private failAll(error: ChatError, isMeant: (running: Running) => boolean = () => true): void {
    for (const [id, running] of [...this.running])
      if (isMeant(running)) this.take(id)?.onError(error);
  }
}
