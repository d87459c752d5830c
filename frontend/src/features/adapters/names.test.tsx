import { screen, waitFor, within } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { beforeEach, expect, test } from "vitest";
import type { Alias, Profile } from "@/lib/types";
import { anAdapter, anAlias, aVersion, TENANT } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, page, problem, server } from "@/testing/server";

const PROFILE_PATH = at("adapters/support-bot/versions/2/profile/");

beforeEach(() => {
  server.use(
    http.get(at("adapters/support-bot/"), () => HttpResponse.json(anAdapter())),
    http.get(at("adapters/support-bot/versions/"), () =>
      page([aVersion({ number: 2, state: "active" }), aVersion({ number: 1 })]),
    ),
  );
});

test("the profile is shown, edited and saved whole", async () => {
  let profile: Profile = { system_prompt: "Be brief.", stop: ["\n\n"], temperature: 0.2 };
  server.use(
    http.get(PROFILE_PATH, () => HttpResponse.json(profile)),
    http.put(PROFILE_PATH, async ({ request }) => {
      profile = (await request.json()) as Profile;
      return HttpResponse.json(profile);
    }),
  );
  const { user } = renderAt("/t/acme/adapters/support-bot");
  const card = await screen.findByRole("region", { name: "Serving profile" });
  for (const text of ["Be brief.", "\\n\\n", "Temperature0.2"]) {
    expect(card).toHaveTextContent(text);
  }
  await user.click(screen.getByRole("button", { name: "Edit the serving profile of v2" }));
  const dialog = within(await screen.findByRole("dialog"));
  await user.clear(dialog.getByLabelText("System prompt"));
  await user.click(dialog.getByLabelText("Stop words"));
  await user.paste("\nUser:");
  await user.type(dialog.getByLabelText("Top k"), "40");
  await user.click(dialog.getByRole("button", { name: "Save" }));
  await waitFor(() => expect(card).toHaveTextContent("Top k40"));
  expect(profile).toMatchObject({
    system_prompt: null,
    stop: ["\n\n", "User:"],
    temperature: 0.2,
    top_k: 40,
    seed: null,
  });
  expect(card).not.toHaveTextContent("Be brief.");
});

test("what the server says of a profile stays in its dialog", async () => {
  server.use(
    http.put(PROFILE_PATH, () => problem(400, "invalid_profile", "stop: Expected an array.")),
  );
  const { user } = renderAt("/t/acme/adapters/support-bot");
  expect(await screen.findByText(/Nothing is set/)).toBeVisible();
  await user.click(screen.getByRole("button", { name: "Edit the serving profile of v2" }));
  const dialog = within(await screen.findByRole("dialog"));
  await user.click(dialog.getByRole("button", { name: "Save" }));
  expect(await dialog.findByRole("alert")).toHaveTextContent("stop: Expected an array.");
});

test("aliases are listed, made, pointed elsewhere and deleted", async () => {
  let aliases: Alias[] = [anAlias()];
  server.use(
    http.get(at("aliases/"), ({ request }) => {
      expect(new URL(request.url).searchParams.get("adapter")).toBe("support-bot");
      return page(aliases);
    }),
    http.post(at("aliases/"), async ({ request }) => {
      aliases = [...aliases, anAlias((await request.json()) as Alias)];
      return HttpResponse.json(aliases.at(-1), { status: 201 });
    }),
    http.put(at("aliases/prod/"), async ({ request }) => {
      aliases = [anAlias((await request.json()) as Alias), ...aliases.slice(1)];
      return HttpResponse.json(aliases[0]);
    }),
    http.delete(at("aliases/prod/"), () => {
      aliases = aliases.slice(1);
      return new HttpResponse(null, { status: 204 });
    }),
  );
  const { user } = renderAt("/t/acme/adapters/support-bot");
  const table = await screen.findByRole("table", { name: "Aliases of support-bot" });
  expect(table).toHaveTextContent("prodthe active version");
  await user.click(screen.getByRole("button", { name: "New alias" }));
  let dialog = within(await screen.findByRole("dialog"));
  await user.type(dialog.getByLabelText(/Name/), "old");
  await user.click(dialog.getByRole("combobox", { name: "Means" }));
  await user.click(await screen.findByRole("option", { name: "Version 1" }));
  await user.click(dialog.getByRole("button", { name: "Create alias" }));
  await waitFor(() => expect(table).toHaveTextContent("oldversion 1"));
  await user.click(screen.getByRole("button", { name: "Change prod" }));
  dialog = within(await screen.findByRole("dialog"));
  await user.click(dialog.getByRole("combobox", { name: "Means" }));
  await user.click(await screen.findByRole("option", { name: "Version 2" }));
  await user.click(dialog.getByRole("button", { name: "Save" }));
  await waitFor(() => expect(table).toHaveTextContent("prodversion 2"));
  await user.click(screen.getByRole("button", { name: "Delete prod" }));
  dialog = within(await screen.findByRole("dialog"));
  await user.click(dialog.getByRole("button", { name: "Delete alias" }));
  await waitFor(() => expect(table).not.toHaveTextContent("prod"));
});

test("who may not change them is offered nothing", async () => {
  server.use(
    http.get(at(""), () => HttpResponse.json({ ...TENANT, permissions: ["read"] })),
    http.get(at("aliases/"), () => page([anAlias()])),
  );
  renderAt("/t/acme/adapters/support-bot");
  await screen.findByRole("table", { name: "Aliases of support-bot" });
  expect(await screen.findByText(/Nothing is set/)).toBeVisible();
  expect(screen.queryByRole("button", { name: /alias|Change|Delete|Edit/ })).toBeNull();
});
