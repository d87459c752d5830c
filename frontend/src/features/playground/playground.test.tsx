import { screen, waitFor } from "@testing-library/react";
import { expect, test } from "vitest";
import { DIGEST } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { ask, serveChat } from "@/testing/serve-chat";

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
  await waitFor(() => expect(chat.sent("cancel")).toHaveLength(2));
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
