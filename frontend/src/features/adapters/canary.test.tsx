import { screen, waitFor, within } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { expect, test } from "vitest";
import type { Adapter, Canary } from "@/lib/types";
import { anAdapter, aVersion, DIGEST } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, page, problem, server } from "@/testing/server";

const FIGURES = { digest: DIGEST, num_errors: 0, prompt_tokens: 1_200, completion_tokens: 340 };

function aCanary(change: Partial<Canary> = {}): Canary {
  return {
    version: 3,
    percent: 10,
    state: "running",
    error: "",
    started_at: "2026-03-05T10:00:00Z",
    active_figures: { number: 2, num_requests: 90, ...FIGURES },
    canary_figures: { number: 3, num_requests: 12, ...FIGURES, num_errors: 4 },
    ...change,
  };
}

/** A server that keeps what is sent to it. */
function serve(first: Canary | undefined) {
  let canary = first;
  const sent: unknown[] = [];
  const adapter = (): Adapter =>
    anAdapter({
      canary: canary ? { version: 3, percent: canary.percent, state: canary.state } : null,
    });
  server.use(
    http.get(at("adapters/support-bot/"), () => HttpResponse.json(adapter())),
    http.get(at("adapters/support-bot/versions/"), () =>
      page([aVersion({ number: 3 }), aVersion({ number: 2, state: "active" })]),
    ),
    http.get(at("adapters/support-bot/canary/"), () =>
      canary ? HttpResponse.json(canary) : problem(404, "not_found", "There is no canary."),
    ),
    http.put(at("adapters/support-bot/canary/"), async ({ request }) => {
      const body = (await request.json()) as { percent: number };
      sent.push(body);
      if (body.percent < 100) canary = aCanary({ percent: body.percent });
      return HttpResponse.json(canary);
    }),
    http.delete(at("adapters/support-bot/canary/"), () => {
      canary = undefined;
      sent.push("stop");
      return new HttpResponse(null, { status: 204 });
    }),
  );
  return sent;
}

test("both versions stand side by side, and the share is changed", async () => {
  const sent = serve(aCanary());
  const { user } = renderAt("/t/acme/adapters/support-bot");
  const card = within(await screen.findByRole("region", { name: "Canary" }));
  expect(card.getByText(/Version 3 serves 10 %/)).toBeVisible();
  expect(card.getByRole("row", { name: "Requests 90 12" })).toBeVisible();
  expect(card.getByRole("row", { name: "Errors 0 4" })).toBeVisible();
  await user.click(card.getByRole("button", { name: "Change share" }));
  const dialog = within(await screen.findByRole("dialog"));
  const share = dialog.getByRole("textbox", { name: "Share of end users" });
  await user.clear(share);
  await user.type(share, "100");
  await user.click(dialog.getByRole("button", { name: "Change share" }));
  expect(await dialog.findByText("1 to 99")).toBeVisible();
  await user.clear(share);
  await user.type(share, "25");
  await user.click(dialog.getByRole("button", { name: "Change share" }));
  expect(await screen.findByText(/Version 3 serves 25 %/)).toBeVisible();
  expect(sent).toEqual([{ version: 3, percent: 25 }]);
});

test("it is begun from a ready version, and stopped", async () => {
  const sent = serve(undefined);
  const { user } = renderAt("/t/acme/adapters/support-bot");
  await user.click(await screen.findByRole("button", { name: "Begin canary" }));
  const dialog = within(await screen.findByRole("dialog"));
  await user.click(dialog.getByRole("button", { name: "Begin canary" }));
  await user.click(await screen.findByRole("button", { name: "Stop" }));
  await screen.findByRole("button", { name: "Begin canary" });
  expect(sent).toEqual([{ version: 3, percent: 10 }, "stop"]);
});

test("promoting asks first", async () => {
  const sent = serve(aCanary());
  const { user } = renderAt("/t/acme/adapters/support-bot");
  await user.click(await screen.findByRole("button", { name: "Promote v3" }));
  expect(sent).toEqual([]);
  const dialog = within(await screen.findByRole("dialog"));
  await user.click(dialog.getByRole("button", { name: "Promote v3" }));
  await waitFor(() => expect(sent).toEqual([{ version: 3, percent: 100 }]));
});

test("one that failed says why", async () => {
  serve(aCanary({ state: "failed", error: "No replica could load it: rank 8 is above 4" }));
  renderAt("/t/acme/adapters/support-bot");
  expect(await screen.findByText(/rank 8 is above 4/)).toBeVisible();
  expect(screen.queryByRole("button", { name: "Promote v3" })).toBeNull();
});

test("a version is retired once it is no canary", async () => {
  serve(aCanary());
  const retired: string[] = [];
  server.use(
    http.post(at("adapters/support-bot/versions/3/retire/"), () => {
      retired.push("3");
      return HttpResponse.json(aVersion({ number: 3, state: "retired" }));
    }),
  );
  const { user } = renderAt("/t/acme/adapters/support-bot");
  const stop = await screen.findByRole("button", { name: "Stop" });
  expect(screen.queryByRole("button", { name: "Retire v3" })).toBeNull();
  await user.click(stop);
  await user.click(await screen.findByRole("button", { name: "Retire v3" }));
  await waitFor(() => expect(retired).toEqual(["3"]));
});

test("what an operator keeps near the device is said", async () => {
  serve(undefined);
  server.use(
    http.get(at("adapters/support-bot/"), () => HttpResponse.json(anAdapter({ keep: "pinned" }))),
  );
  renderAt("/t/acme/adapters/support-bot");
  expect(await screen.findByText("Pinned")).toBeVisible();
});
