import { screen, waitFor, within } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { expect, test } from "vitest";
import type { Key } from "@/lib/types";
import { aKey } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, page, server } from "@/testing/server";

const SECRET = "gh-n3wk3y00-s3cr3t";
const UNLIMITED = {
  requests_per_minute: null,
  tokens_per_minute: null,
  max_concurrency: null,
  tokens_per_day: null,
  tokens_per_month: null,
  daily_budget: null,
  monthly_budget: null,
};

/** Opens a key's menu and picks from it. */
async function act(
  user: ReturnType<typeof renderAt>["user"],
  name: string,
  action: string,
): Promise<void> {
  await user.click(await screen.findByRole("button", { name: `Actions of ${name}` }));
  await user.click(await screen.findByRole("menuitem", { name: action }));
}

test("a new key is shown once, and nowhere after", async () => {
  const keys: Key[] = [aKey()];
  const bodies: unknown[] = [];
  server.use(
    http.get(at("keys/"), () => page(keys)),
    http.get(at("adapters/"), () => page([])),
    http.post(at("keys/"), async ({ request }) => {
      bodies.push(await request.json());
      keys.unshift(aKey({ public_id: "n3wk3y00", name: "notebook" }));
      return HttpResponse.json({ ...keys[0], secret: SECRET }, { status: 201 });
    }),
  );
  const { user, queryClient } = renderAt("/t/acme/keys");
  await user.click(await screen.findByRole("button", { name: "New key" }));
  const dialog = await screen.findByRole("dialog");
  await user.type(within(dialog).getByLabelText("Name"), "notebook");
  await user.click(within(dialog).getByRole("checkbox", { name: "Usage" }));
  await user.click(within(dialog).getByRole("button", { name: "Create key" }));

  expect(await screen.findByText(SECRET)).toBeVisible();
  expect(screen.getByLabelText("API key")).toHaveFocus();
  expect(bodies).toEqual([
    {
      ...UNLIMITED,
      name: "notebook",
      scopes: ["inference", "usage"],
      allowed_models: [],
      expires_at: null,
    },
  ]);
  await user.click(screen.getByRole("button", { name: "Copy API key" }));
  expect(await navigator.clipboard.readText()).toBe(SECRET);

  await user.click(screen.getByRole("button", { name: "I have stored it" }));
  await waitFor(() => expect(screen.queryByText(SECRET)).not.toBeInTheDocument());
  expect(await screen.findByRole("row", { name: /notebook/ })).toBeVisible();
  const cached = queryClient.getQueryCache().getAll();
  expect(JSON.stringify(cached.map(({ state }) => state.data))).not.toContain(SECRET);
  const mutations = queryClient.getMutationCache().getAll();
  expect(JSON.stringify(mutations.map(({ state }) => state.data ?? null))).not.toContain(SECRET);
});

test("a key without a scope is not asked for", async () => {
  server.use(
    http.get(at("keys/"), () => page([])),
    http.get(at("adapters/"), () => page([])),
  );
  const { user } = renderAt("/t/acme/keys");
  await user.click(await screen.findByRole("button", { name: "New key" }));
  await user.type(await screen.findByLabelText("Name"), "x");
  await user.click(screen.getByRole("checkbox", { name: "Inference" }));
  await user.click(screen.getByRole("button", { name: "Create key" }));
  expect(await screen.findByText("Choose at least one scope")).toBeVisible();
});

test("revoking asks first", async () => {
  const keys = [aKey()];
  const revoked: unknown[] = [];
  server.use(
    http.get(at("keys/"), () => page(keys)),
    http.delete(at("keys/:id/"), ({ params }) => {
      revoked.push(params.id);
      keys[0] = aKey({ state: "revoked", revoked_at: "2026-03-05T11:00:00Z" });
      return new HttpResponse(null, { status: 204 });
    }),
  );
  const { user } = renderAt("/t/acme/keys");
  await act(user, "backend", "Revoke");
  expect(revoked).toEqual([]);
  await user.click(await screen.findByRole("button", { name: "Revoke key" }));
  await waitFor(() => expect(revoked).toEqual(["k7f3a91c"]));
  expect(await screen.findByText("Revoked")).toBeVisible();
});

test("a rotated key shows its new secret once; the old one says until when it works", async () => {
  const keys: Key[] = [aKey()];
  const bodies: unknown[] = [];
  server.use(
    http.get(at("keys/"), () => page(keys)),
    http.post(at("keys/:id/rotate/"), async ({ request, params }) => {
      bodies.push([params.id, await request.json()]);
      const end = new Date(Date.now() + 7 * 86_400_000 - 60_000).toISOString();
      keys[0] = aKey({ state: "replaced", expires_at: end });
      keys.unshift(aKey({ public_id: "n3wk3y00", replaces: "k7f3a91c" }));
      return HttpResponse.json({ ...keys[0], secret: SECRET }, { status: 201 });
    }),
  );
  const { user, queryClient } = renderAt("/t/acme/keys");
  await act(user, "backend", "Rotate");
  await user.click(await screen.findByRole("combobox", { name: "The old key goes on working" }));
  await user.click(await screen.findByRole("option", { name: "For a week" }));
  await user.click(screen.getByRole("button", { name: "Rotate key" }));
  expect(await screen.findByText(SECRET)).toBeVisible();
  expect(bodies).toEqual([["k7f3a91c", { overlap_s: 604_800 }]]);
  await user.click(screen.getByRole("button", { name: "I have stored it" }));
  await waitFor(() => expect(screen.queryByText(SECRET)).not.toBeInTheDocument());
  const old = await screen.findByRole("row", { name: /Replaced/ });
  expect(old).toHaveTextContent("in 6 days");
  expect(screen.getByText("replaces gh-k7f3a91c…")).toBeVisible();
  const mutations = queryClient.getMutationCache().getAll();
  expect(JSON.stringify(mutations.map(({ state }) => state.data ?? null))).not.toContain(SECRET);
  // What was replaced is not replaced again.
  await user.click(within(old).getByRole("button", { name: "Actions of backend" }));
  expect(await screen.findByRole("menuitem", { name: "Revoke" })).toBeVisible();
  expect(screen.queryByRole("menuitem", { name: "Rotate" })).not.toBeInTheDocument();
});

test("a change sends what the form holds, and keeps the end as it is", async () => {
  const key = aKey({ allowed_models: ["support-bot"], requests_per_minute: 1200 });
  const bodies: unknown[] = [];
  server.use(
    http.get(at("keys/"), () => page([key])),
    http.get(at("adapters/"), () => page([])),
    http.patch(at("keys/:id/"), async ({ request }) => {
      bodies.push(await request.json());
      return HttpResponse.json(key);
    }),
  );
  const { user } = renderAt("/t/acme/keys");
  expect(await screen.findByText("only support-bot")).toBeVisible();
  expect(screen.getByText("1.2K requests/min")).toBeVisible();
  await act(user, "backend", "Edit");
  const limit = await screen.findByLabelText("Requests a minute");
  await user.clear(limit);
  await user.type(limit, "30");
  await user.click(screen.getByRole("button", { name: "Save" }));
  await waitFor(() => expect(bodies).toHaveLength(1));
  expect(bodies[0]).toEqual({
    ...UNLIMITED,
    name: "backend",
    scopes: ["inference"],
    allowed_models: ["support-bot"],
    requests_per_minute: 30,
  });
});

test("a key that ends while its page is open is called expired", async () => {
  const end = new Date(Date.now() - 1000).toISOString();
  server.use(http.get(at("keys/"), () => page([aKey({ state: "active", expires_at: end })])));
  renderAt("/t/acme/keys");
  expect(await screen.findByText("Expired")).toBeVisible();
});
