import { screen, waitFor } from "@testing-library/react";
import { expect, test } from "vitest";
import { ask, serveChat } from "@/testing/serve-chat";

test("answers go on where they were when the connection drops", async () => {
  const chat = serveChat();
  await ask(chat);
  expect(chat.chats().map(({ resumable }) => resumable)).toEqual([true, true]);
  chat.start("tiny-base");
  chat.start("support-bot");
  chat.chunk("tiny-base", "Good ");
  chat.chunk("support-bot", "Half ");
  const base = await screen.findByRole("article", { name: "Answer of tiny-base" });
  const grafted = screen.getByRole("article", { name: "Answer of support-bot" });
  await waitFor(() => expect(grafted).toHaveTextContent("Half"));
  chat.close(1011);
  await waitFor(() => expect(base).toHaveTextContent("picking the answer up again"));
  await waitFor(() => expect(chat.sent("resume")).toHaveLength(2));
  expect(chat.sent("resume")).toEqual([
    { type: "resume", id: "c1", generation: "g-tiny-base", after: 1 },
    { type: "resume", id: "c2", generation: "g-support-bot", after: 2 },
  ]);
  chat.write({ type: "resumed", id: "c1", generation: "g-tiny-base" });
  chat.chunk("tiny-base", "day");
  chat.done("tiny-base", 2);
  await waitFor(() => expect(base).toHaveTextContent("Good day"));
  expect(base).not.toHaveTextContent("picking the answer up again");
  const error = { message: "No such.", type: "x", param: null, code: "generation_not_found" };
  chat.write({ type: "error", id: "c2", error });
  const alert = await screen.findByRole("alert");
  expect(alert).toHaveTextContent(/connection closed before the answer was complete/);
  expect(grafted).toContainElement(alert);
  expect(grafted).toHaveTextContent("Half");
  expect(screen.getByRole("button", { name: "Send" })).toBeVisible();
});

test("what was stopped while the connection was lost is cancelled once there is one", async () => {
  const chat = serveChat();
  const { user } = await ask(chat);
  chat.start("support-bot");
  chat.chunk("support-bot", "Half ");
  const answer = await screen.findByRole("article", { name: "Answer of support-bot" });
  await waitFor(() => expect(answer).toHaveTextContent("Half"));
  chat.close(1011);
  await waitFor(() => expect(answer).toHaveTextContent("picking the answer up again"));
  await user.click(screen.getByRole("button", { name: "Stop" }));
  await waitFor(() => expect(chat.sent("cancel")).toHaveLength(1));
  expect(chat.frames.slice(-2).map(({ type, id }) => [type, id])).toEqual([
    ["resume", "c2"],
    ["cancel", "c2"],
  ]);
  expect(answer).toHaveTextContent("stopped");
});

test("what the server has given no name ends with its connection, and the next prompt opens another", async () => {
  const chat = serveChat();
  const { user } = await ask(chat);
  chat.close(1011);
  expect(await screen.findAllByText(/connection closed before/)).toHaveLength(2);
  await user.type(screen.getByRole("textbox", { name: "Prompt" }), "Again{Enter}");
  await waitFor(() => expect(chat.chats()).toHaveLength(4));
  expect(chat.sent("auth")).toHaveLength(2);
  expect(chat.sent("resume")).toHaveLength(0);
});

test("a connection that is refused is not tried again", async () => {
  const chat = serveChat();
  await ask(chat);
  chat.start("support-bot");
  chat.chunk("support-bot", "Half ");
  await screen.findByText("Half");
  chat.close(4401);
  expect(await screen.findAllByText(/Not signed in any more|connection closed/)).toHaveLength(2);
  expect(screen.getByRole("button", { name: "Send" })).toBeVisible();
});
