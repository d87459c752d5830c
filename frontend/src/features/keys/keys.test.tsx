import { screen, waitFor, within } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { expect, test } from "vitest";
import type { Key } from "@/lib/types";
import { aKey } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, page, server } from "@/testing/server";

const SECRET = "gh-n3wk3y00-s3cr3t";

test("a new key is shown once, and nowhere after", async () => {
  const keys: Key[] = [aKey()];
  const bodies: unknown[] = [];
  server.use(
    http.get(at("keys/"), () => page(keys)),
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
  expect(bodies).toEqual([{ name: "notebook", scopes: ["inference", "usage"], expires_at: null }]);
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
  server.use(http.get(at("keys/"), () => page([])));
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
      keys[0] = aKey({ revoked_at: "2026-03-05T11:00:00Z" });
      return new HttpResponse(null, { status: 204 });
    }),
  );
  const { user } = renderAt("/t/acme/keys");
  await user.click(await screen.findByRole("button", { name: "Revoke backend" }));
  expect(revoked).toEqual([]);
  await user.click(await screen.findByRole("button", { name: "Revoke key" }));
  await waitFor(() => expect(revoked).toEqual(["k7f3a91c"]));
  expect(await screen.findByText("Revoked")).toBeVisible();
});
