import { screen, waitFor } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { expect, test } from "vitest";
import { aKey, anAdapter } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, page, server } from "@/testing/server";

test("a key with models and limits of its own", async () => {
  const bodies: unknown[] = [];
  server.use(
    http.get(at("keys/"), () => page([])),
    http.get(at("adapters/"), () => page([anAdapter({ name: "support-bot" })])),
    http.post(at("keys/"), async ({ request }) => {
      bodies.push(await request.json());
      return HttpResponse.json({ ...aKey(), secret: "gh-n3wk3y00-s3cr3t" }, { status: 201 });
    }),
  );
  const { user } = renderAt("/t/acme/keys");
  await user.click(await screen.findByRole("button", { name: "New key" }));
  await user.type(await screen.findByLabelText("Name"), "few");
  await user.click(screen.getByRole("combobox", { name: "Models" }));
  await user.click(await screen.findByRole("option", { name: "support-bot" }));
  await user.type(screen.getByLabelText("Requests a minute"), "60");
  await user.type(screen.getByLabelText("Money a month"), "12.5");
  await user.click(screen.getByRole("button", { name: "Create key" }));
  await waitFor(() => expect(bodies).toHaveLength(1));
  expect(bodies[0]).toMatchObject({
    allowed_models: ["support-bot"],
    requests_per_minute: 60,
    monthly_budget: "12.5",
  });
});

test("a model that there is not is refused by its name, and the form stays", async () => {
  const message = "allowed_models: no adapter, alias or base model is called suport-bot.";
  server.use(
    http.get(at("keys/"), () => page([])),
    http.get(at("adapters/"), () => page([anAdapter({ name: "support-bot" })])),
    http.post(at("keys/"), () =>
      HttpResponse.json(
        { error: { code: "invalid_request", message, details: [] } },
        { status: 400 },
      ),
    ),
  );
  const { user } = renderAt("/t/acme/keys");
  await user.click(await screen.findByRole("button", { name: "New key" }));
  await user.type(await screen.findByLabelText("Name"), "few");
  await user.type(screen.getByRole("combobox", { name: "Models" }), "suport-bot{Enter}");
  await user.click(screen.getByRole("button", { name: "Create key" }));
  expect(await screen.findByText(message)).toBeVisible();
  expect(screen.getByLabelText("Name")).toHaveValue("few");
});
