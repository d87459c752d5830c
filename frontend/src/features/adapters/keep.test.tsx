import { screen, waitFor } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { expect, test } from "vitest";
import type { Adapter } from "@/lib/types";
import { anAdapter, aVersion, SESSION } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, page, problem, server, SESSION_URL } from "@/testing/server";

/** A server that keeps what is sent to it. */
function serve(isOperator: boolean) {
  let keep: Adapter["keep"] = "no";
  const sent: unknown[] = [];
  server.use(
    http.get(SESSION_URL, () =>
      HttpResponse.json({ ...SESSION, user: { login: "oscar", is_operator: isOperator } }),
    ),
    http.get(at("adapters/support-bot/"), () => HttpResponse.json(anAdapter({ keep }))),
    http.get(at("adapters/support-bot/versions/"), () => page([aVersion({ state: "active" })])),
    http.get(at("adapters/support-bot/canary/"), () => problem(404, "not_found", "None.")),
    http.put("http://localhost:3000/api/fleet/keep/acme/support-bot/", async ({ request }) => {
      const body = (await request.json()) as { keep: Adapter["keep"] };
      sent.push(body);
      keep = body.keep;
      return HttpResponse.json(anAdapter({ keep }));
    }),
  );
  return sent;
}

test("an operator pins an adapter, and lets it go", async () => {
  const sent = serve(true);
  const { user } = renderAt("/t/acme/adapters/support-bot");
  await user.click(await screen.findByRole("button", { name: "Keep" }));
  await user.click(await screen.findByRole("menuitem", { name: /Pin to the device/ }));
  expect(await screen.findByText("Pinned")).toBeVisible();
  await user.click(screen.getByRole("button", { name: "Keep" }));
  await user.click(await screen.findByRole("menuitem", { name: /As requests come/ }));
  await waitFor(() => expect(screen.queryByText("Pinned")).toBeNull());
  expect(sent).toEqual([{ keep: "pinned" }, { keep: "no" }]);
});

test("nobody else is offered it", async () => {
  serve(false);
  renderAt("/t/acme/adapters/support-bot");
  await screen.findByRole("button", { name: "More actions" });
  expect(screen.queryByRole("button", { name: "Keep" })).toBeNull();
});
