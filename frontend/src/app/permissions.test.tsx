import { screen } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { beforeEach, expect, test } from "vitest";
import type { Permission } from "@/lib/types";
import { aKey, anAdapter, aVersion, TENANT, TOTALS } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, eventSocket, page, server } from "@/testing/server";

function allow(...permissions: Permission[]): void {
  server.use(http.get(at(""), () => HttpResponse.json({ ...TENANT, permissions })));
}

beforeEach(() => {
  allow("read");
  server.use(
    http.get(at("adapters/"), () => page([anAdapter()])),
    http.get(at("adapters/support-bot/"), () => HttpResponse.json(anAdapter())),
    http.get(at("adapters/support-bot/versions/"), () =>
      page([
        aVersion({ number: 4, state: "failed" }),
        aVersion({ number: 3 }),
        aVersion({ number: 2, state: "active", is_served: true }),
        aVersion({ number: 1, is_served: true }),
      ]),
    ),
    http.get(at("keys/"), () => page([aKey()])),
    http.get(at("usage/"), () => page([])),
    http.get(at("usage/summary/"), () =>
      HttpResponse.json({ total: TOTALS, by_day_and_adapter: [] }),
    ),
  );
});

/** Names of everything on the page that can be pressed. */
function offered(): string[] {
  const found = [...screen.queryAllByRole("button"), ...screen.queryAllByRole("link")];
  return found.map((element) => element.getAttribute("aria-label") ?? element.textContent);
}

test("who may only look is offered no deed on an adapter", async () => {
  renderAt("/t/acme/adapters/support-bot");
  expect(await screen.findByRole("button", { name: "Show version 3" })).toBeVisible();
  const deeds = /New version|More actions|Try it|Activate|Roll back|Retry|Get an API key/;
  expect(offered().filter((name) => deeds.test(name))).toEqual([]);
});

test("who may change adapters is offered every deed on one", async () => {
  allow("read", "adapters");
  renderAt("/t/acme/adapters/support-bot");
  expect(await screen.findByRole("button", { name: "Activate v3" })).toBeVisible();
  expect(offered()).toEqual(
    expect.arrayContaining(["Retry v4", "Roll back to v1", "New version", "More actions"]),
  );
  expect(offered()).not.toContain("Try it");
});

test("the list is read-only too, and an empty one asks nobody to upload", async () => {
  renderAt("/t/acme/adapters");
  expect(await screen.findByRole("link", { name: "support-bot" })).toBeVisible();
  expect(offered()).not.toContain("New adapter");
});

test("an empty list asks nobody to upload who cannot", async () => {
  server.use(http.get(at("adapters/"), () => page([])));
  renderAt("/t/acme/adapters");
  expect(await screen.findByRole("heading", { name: "No adapters yet" })).toBeVisible();
  expect(offered()).not.toContain("Upload the first adapter");
});

test.each(["adapters/new", "adapters/support-bot/upload", "playground"])(
  "the address %s says what the role lacks",
  async (path) => {
    renderAt(`/t/acme/${path}`);
    expect(await screen.findByRole("heading", { name: "Not with your role" })).toBeVisible();
    expect(screen.queryByRole("textbox")).toBeNull();
    expect(offered()).not.toContain("Send");
  },
);

test("keys are listed without being made or revoked", async () => {
  renderAt("/t/acme/keys");
  expect(await screen.findByRole("row", { name: /backend/ })).toBeVisible();
  expect(offered()).not.toContain("New key");
  expect(offered()).not.toContain("Actions of backend");
});

test("a key is given only scopes that its maker has", async () => {
  allow("read", "keys", "inference", "usage");
  const { user } = renderAt("/t/acme/keys");
  await user.click(await screen.findByRole("button", { name: "New key" }));
  await screen.findByRole("form", { name: "New API key" });
  const scopes = screen.getAllByRole("checkbox").map((box) => box.getAttribute("value"));
  expect(scopes).toEqual(["inference", "usage"]);
});

test("whoever may see usage may export it", async () => {
  renderAt("/t/acme/usage");
  expect(await screen.findByRole("button", { name: "Export" })).toBeVisible();
});

test("requests that end do not ask for the tenant again", async () => {
  let numAsked = 0;
  server.use(
    http.get(at("usage/summary/"), () => {
      numAsked += 1;
      return HttpResponse.json({ total: TOTALS, by_day_and_adapter: [] });
    }),
  );
  const { queryClient } = renderAt("/t/acme/usage");
  await screen.findByText("Live");
  const state = () => queryClient.getQueryState(["acme", "detail"]);
  const before = state()?.dataUpdatedAt;
  expect(before).toBeDefined();
  const asked = numAsked;
  eventSocket.broadcast(JSON.stringify({ type: "event", event: "usage.recorded", data: {} }));
  await expect.poll(() => numAsked, { timeout: 5_000 }).toBeGreaterThan(asked);
  expect(state()).toMatchObject({ dataUpdatedAt: before, isInvalidated: false });
});
