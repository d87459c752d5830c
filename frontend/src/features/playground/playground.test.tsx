import { screen, waitFor } from "@testing-library/react";
import { http } from "msw";
import { expect, test } from "vitest";
import * as z from "zod";
import { parseFrame } from "@/lib/events";
import { anAdapter, aVersion, DIGEST } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, chatSocket, page, server } from "@/testing/server";

const frameSchema = z.object({
  type: z.string(),
  tenant: z.string().optional(),
  id: z.string().optional(),
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
function serveChat() {
  const frames: Frame[] = [];
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
    chunk(model: string, content: string): void {
      const choices = [{ index: 0, delta: { content }, finish_reason: null }];
      const data = { system_fingerprint: model === "tiny-base" ? "base" : DIGEST, choices };
      write({ type: "chunk", id: idOf(model), data });
    },
    done(model: string, numTokens: number): void {
      const usage = { prompt_tokens: 5, completion_tokens: numTokens };
      write({ type: "done", id: idOf(model), usage });
    },
  };
}

async function ask(chat: ReturnType<typeof serveChat>, path = "/t/acme/playground") {
  const app = renderAt(path);
  await app.user.type(await screen.findByRole("textbox", { name: "Prompt" }), "Hello{Enter}");
  await waitFor(() => expect(chat.chats()).toHaveLength(2));
  return app;
}

test("one prompt streams from both models, with figures, and goes on as a conversation", async () => {
  const chat = serveChat();
  const { user } = await ask(chat);
  expect(chat.frames[0]).toMatchObject({ type: "auth", tenant: "acme" });
  expect(chat.chats().map(({ body }) => body?.model)).toEqual(["tiny-base", "support-bot"]);
  expect(chat.chats()[0]?.body).toMatchObject({ temperature: 0, max_tokens: 128, stream: true });

  chat.chunk("tiny-base", "Good ");
  chat.chunk("support-bot", '{"greeting": ');
  const base = await screen.findByRole("article", { name: "Answer of tiny-base" });
  const grafted = screen.getByRole("article", { name: "Answer of support-bot" });
  await waitFor(() => expect(grafted).toHaveTextContent('{"greeting":'));
  chat.chunk("tiny-base", "day");
  chat.chunk("support-bot", "1}");
  chat.done("tiny-base", 2);
  chat.done("support-bot", 2);
  await waitFor(() => expect(grafted).toHaveTextContent("5 in, 2 out"));
  expect(base).toHaveTextContent("Good day");
  expect(base).toHaveTextContent(/first token \d+ ms/);
  expect(grafted).toHaveTextContent('{"greeting": 1}');
  expect(grafted).toHaveTextContent(DIGEST.slice(0, 12));

  await user.type(screen.getByRole("textbox", { name: "Prompt" }), "Again{Enter}");
  await waitFor(() => expect(chat.chats()).toHaveLength(4));
  expect(chat.chats()[3]?.body?.messages).toEqual([
    { role: "user", content: "Hello" },
    { role: "assistant", content: '{"greeting": 1}' },
    { role: "user", content: "Again" },
  ]);
});

test("stop cancels both and keeps what came", async () => {
  const chat = serveChat();
  const { user } = await ask(chat);
  chat.chunk("support-bot", "Half of");
  const answer = await screen.findByRole("article", { name: "Answer of support-bot" });
  await waitFor(() => expect(answer).toHaveTextContent("Half of"));
  await user.click(screen.getByRole("button", { name: "Stop" }));
  await waitFor(() => expect(chat.frames.filter(({ type }) => type === "cancel")).toHaveLength(2));
  const error = { message: "cancelled", type: "x", param: null, code: "cancelled" };
  chat.write({ type: "error", id: chat.idOf("support-bot"), error });
  expect(answer).toHaveTextContent("Half of");
  expect(answer).toHaveTextContent("stopped");
  expect(screen.getByRole("button", { name: "Send" })).toBeVisible();
  expect(screen.queryByRole("alert")).toBeNull();
});

test("an error of one side is shown there and leaves the other alone", async () => {
  const chat = serveChat();
  await ask(chat);
  const error = { message: "No replica holds it.", type: "x", param: null, code: "no_replica" };
  chat.write({ type: "error", id: chat.idOf("support-bot"), error });
  chat.chunk("tiny-base", "Fine");
  const alert = await screen.findByRole("alert");
  expect(alert).toHaveTextContent("no_replica");
  expect(alert).toHaveTextContent("No replica holds it.");
  expect(screen.getByRole("article", { name: "Answer of support-bot" })).toContainElement(alert);
  await waitFor(() =>
    expect(screen.getByRole("article", { name: "Answer of tiny-base" })).toHaveTextContent("Fine"),
  );
});

test("a lost connection ends both answers, and the next prompt opens another", async () => {
  const chat = serveChat();
  const { user } = await ask(chat);
  chat.close(1011);
  expect(await screen.findAllByText(/connection closed before/)).toHaveLength(2);
  await user.type(screen.getByRole("textbox", { name: "Prompt" }), "Again{Enter}");
  await waitFor(() => expect(chat.chats()).toHaveLength(4));
  expect(chat.frames.filter(({ type }) => type === "auth")).toHaveLength(2);
});

test("the address chooses a pinned version", async () => {
  const chat = serveChat();
  await ask(chat, "/t/acme/playground?adapter=support-bot&version=1&against=2");
  expect(chat.chats().map(({ body }) => body?.model)).toEqual(["support-bot@2", "support-bot@1"]);
});

test("only versions that are served are offered", async () => {
  serveChat();
  const { user } = renderAt("/t/acme/playground");
  await user.click(await screen.findByRole("combobox", { name: "Version" }));
  const options = await screen.findAllByRole("option");
  const names = options.map(({ textContent }) => textContent);
  expect(names.filter((name) => name.startsWith("v"))).toEqual(["v2 · active", "v1"]);
});
