import { screen, waitFor } from "@testing-library/react";
import { http } from "msw";
import { expect } from "vitest";
import * as z from "zod";
import { parseFrame } from "@/lib/events";
import { anAdapter, aVersion, DIGEST } from "./data";
import { renderAt } from "./render";
import { at, chatSocket, page, server } from "./server";

const frameSchema = z.object({
  type: z.string(),
  tenant: z.string().optional(),
  id: z.string().optional(),
  resumable: z.boolean().optional(),
  generation: z.string().optional(),
  after: z.number().optional(),
  body: z
    .object({
      model: z.string(),
      messages: z.array(z.object({ role: z.string(), content: z.string() })),
    })
    .loose()
    .optional(),
});
type Frame = z.infer<typeof frameSchema>;

/** A server at the other end of the socket that a test drives by hand. */
export function serveChat() {
  const frames: Frame[] = [];
  let seq = 0;
  let write: (frame: object) => void = () => undefined;
  let close: (code: number) => void = () => undefined;
  server.use(
    http.get(at("adapters/"), () => page([anAdapter()])),
    http.get(at("adapters/support-bot/versions/"), () =>
      page([
        aVersion({ number: 4 }),
        aVersion({ number: 3, state: "rejected" }),
        aVersion({ number: 2, state: "active", is_served: true }),
        aVersion({ number: 1, is_served: true }),
      ]),
    ),
    chatSocket.addEventListener("connection", ({ client }) => {
      write = (frame) => client.send(JSON.stringify(frame));
      close = (code) => client.close(code);
      client.addEventListener("message", (message) => {
        const frame = frameSchema.parse(parseFrame(message.data));
        frames.push(frame);
        if (frame.type === "auth") write({ type: "ready", tenant: frame.tenant });
      });
    }),
  );
  const chats = () => frames.filter(({ type }) => type === "chat");
  const idOf = (model: string) => chats().findLast(({ body }) => body?.model === model)?.id;
  return {
    frames,
    chats,
    idOf,
    close: (code: number) => close(code),
    write: (frame: object) => write(frame),
    sent: (type: string) => frames.filter((frame) => frame.type === type),
    start(model: string): void {
      write({ type: "started", id: idOf(model), generation: `g-${model}` });
    },
    chunk(model: string, content: string): void {
      seq += 1;
      const choices = [{ index: 0, delta: { content }, finish_reason: null }];
      const data = { system_fingerprint: model === "tiny-base" ? "base" : DIGEST, choices };
      write({ type: "chunk", id: idOf(model), seq, data });
    },
    done(model: string, numTokens: number): void {
      const usage = { prompt_tokens: 5, completion_tokens: numTokens };
      write({ type: "done", id: idOf(model), seq: seq + 1, usage });
    },
  };
}

/** The playground, after one prompt to both models. */
export async function ask(chat: ReturnType<typeof serveChat>, path = "/t/acme/playground") {
  const app = renderAt(path);
  await app.user.type(await screen.findByRole("textbox", { name: "Prompt" }), "Hello{Enter}");
  await waitFor(() => expect(chat.chats()).toHaveLength(2));
  return app;
}
