import { screen, waitFor, within } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { expect, test } from "vitest";
import type { Version } from "@/lib/types";
import { anAdapter, aProblem, aVersion } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, eventSocket, page, problem, server } from "@/testing/server";

function serve(versions: Version[]): void {
  server.use(
    http.get(at("adapters/support-bot/"), () => HttpResponse.json(anAdapter())),
    http.get(at("adapters/support-bot/versions/"), () => page(versions)),
  );
}

test("the list shows what serves, and finds by name", async () => {
  server.use(
    http.get(at("adapters/"), () =>
      page([anAdapter(), anAdapter({ name: "orders", description: "", active_version: null })]),
    ),
  );
  const { user, router } = renderAt("/t/acme/adapters");
  const row = await screen.findByRole("row", { name: /support-bot/ });
  expect(row).toHaveTextContent("Activev2");
  expect(screen.getByRole("row", { name: /orders/ })).toHaveTextContent("Not active");
  await user.type(screen.getByRole("searchbox", { name: "Search adapters" }), "ord");
  await waitFor(() => expect(screen.queryByRole("row", { name: /support-bot/ })).toBeNull());
  expect(router.state.location.search).toEqual({ q: "ord" });
});

test("an empty list says what to do", async () => {
  server.use(http.get(at("adapters/"), () => page([])));
  renderAt("/t/acme/adapters");
  expect(await screen.findByRole("heading", { name: "No adapters yet" })).toBeVisible();
  expect(screen.getByRole("link", { name: "Upload the first adapter" })).toHaveAttribute(
    "href",
    "/t/acme/adapters/new",
  );
});

test("a list that does not come can be asked for again", async () => {
  let isBroken = true;
  server.use(
    http.get(at("adapters/"), () =>
      isBroken ? problem(403, "permission_denied", "Not for you.") : page([anAdapter()]),
    ),
  );
  const { user } = renderAt("/t/acme/adapters");
  expect(await screen.findByRole("alert")).toHaveTextContent("Not for you.");
  isBroken = false;
  await user.click(screen.getByRole("button", { name: "Try again" }));
  expect(await screen.findByRole("link", { name: "support-bot" })).toBeVisible();
});

test("a rejected version shows every problem with where, expected and found", async () => {
  const nan = aProblem({ code: "not_finite", message: "Not finite.", where: "x", found: "NaN" });
  const report = { problems: [aProblem(), nan], warnings: [], facts: {} };
  serve([aVersion({ number: 3, state: "rejected", report })]);
  renderAt("/t/acme/adapters/support-bot?version=3");
  const problems = within(await screen.findByRole("list", { name: "2 problems" }));
  const [first, second] = problems.getAllByRole("listitem");
  for (const text of [
    "The tensor does not fit the base model.",
    "shape_mismatch",
    "layers.7.self_attn.q_proj.lora_B",
    "[576, 8]",
    "[4096, 8]",
  ]) {
    expect(first).toHaveTextContent(text);
  }
  expect(second).toHaveTextContent("NaN");
  expect(screen.queryByRole("button", { name: /Activate/ })).toBeNull();
});

test("a newer version is activated at once and its state follows the server's event", async () => {
  const versions = [aVersion({ number: 2, state: "ready" }), aVersion({ state: "active" })];
  serve(versions);
  server.use(
    http.post(at("adapters/support-bot/versions/2/activate/"), () => {
      versions[0] = aVersion({ number: 2, state: "activating" });
      return HttpResponse.json(versions[0], { status: 202 });
    }),
  );
  const { user } = renderAt("/t/acme/adapters/support-bot");
  await screen.findByText("Live");
  await user.click(await screen.findByRole("button", { name: "Activate v2" }));
  const row = screen.getByRole("button", { name: "Show version 2" }).closest("tr");
  await waitFor(() => expect(row).toHaveTextContent("Activating"));

  versions.splice(0, 2, aVersion({ number: 2, state: "active" }), aVersion());
  const data = { adapter: "support-bot", number: 2, state: "active" };
  eventSocket.broadcast(JSON.stringify({ type: "event", event: "version.changed", data }));
  // Sooner than the poll that covers for lost events.
  await waitFor(() => expect(row).toHaveTextContent("v2Active"), { timeout: 2_500 });
  expect(await screen.findByText("support-bot v2 is active")).toBeVisible();
});

test("where a lasting check is follows the server's events", async () => {
  const versions = [aVersion({ state: "validating" })];
  serve(versions);
  renderAt("/t/acme/adapters/support-bot");
  await screen.findByText("Live");
  await screen.findByText(/Nothing of it runs/);
  const say = (number: number, stage: string, percent: number) => {
    const data = { adapter: "support-bot", number, stage, percent };
    eventSocket.broadcast(JSON.stringify({ type: "event", event: "validation.changed", data }));
  };
  say(1, "unpacking", 0);
  expect(await screen.findByText("Unpacking the archive.")).toBeVisible();
  say(1, "values", 40);
  expect(await screen.findByText("Checking every value: 40 %.")).toBeVisible();
  const bar = screen.getByRole("progressbar", { name: "Progress of the check" });
  expect(bar).toHaveAttribute("aria-valuenow", "40");
  // Another version's, and what is no stage.
  say(2, "values", 70);
  say(1, "mining", 90);
  say(1, "digest", 0);
  expect(await screen.findByText("Computing the digest.")).toBeVisible();

  versions[0] = aVersion();
  const data = { adapter: "support-bot", number: 1, state: "ready" };
  eventSocket.broadcast(JSON.stringify({ type: "event", event: "version.changed", data }));
  await waitFor(() => expect(screen.queryByText("Computing the digest.")).toBeNull());
});

test("what events were missed of is asked for again", async () => {
  const versions = [aVersion()];
  serve(versions);
  renderAt("/t/acme/adapters/support-bot");
  expect(await screen.findByText("Live")).toBeVisible();
  versions[0] = aVersion({ state: "failed", error: "The replica never reported it." });
  eventSocket.broadcast(JSON.stringify({ type: "missed" }));
  expect(await screen.findByText("The replica never reported it.")).toBeVisible();
  expect(screen.getByText("Live")).toBeVisible();
});

test("rolling back asks first, and says what happens", async () => {
  const activated: number[] = [];
  serve([aVersion({ number: 2, state: "active" }), aVersion({ number: 1 })]);
  server.use(
    http.post(at("adapters/support-bot/versions/1/activate/"), () => {
      activated.push(1);
      return HttpResponse.json(aVersion({ state: "activating" }), { status: 202 });
    }),
  );
  const { user } = renderAt("/t/acme/adapters/support-bot");
  await user.click(await screen.findByRole("button", { name: "Roll back to v1" }));
  const dialog = within(await screen.findByRole("dialog"));
  expect(activated).toEqual([]);
  await user.click(dialog.getByRole("button", { name: "Roll back to v1" }));
  await waitFor(() => expect(activated).toEqual([1]));
});

test("a failed version says why and can be retried", async () => {
  const retried: string[] = [];
  serve([aVersion({ state: "failed", error: "The replica never reported it." })]);
  server.use(
    http.post(at("adapters/support-bot/versions/1/retry/"), () => {
      retried.push("1");
      return HttpResponse.json(aVersion({ state: "uploaded" }), { status: 202 });
    }),
  );
  const { user } = renderAt("/t/acme/adapters/support-bot");
  expect(await screen.findByText("The replica never reported it.")).toBeVisible();
  await user.click(screen.getByRole("button", { name: "Retry v1" }));
  await waitFor(() => expect(retried).toEqual(["1"]));
});

test.each(["rejected", "failed", "ready"] as const)(
  "a %s version alone serves nothing, so nothing says how to use it",
  async (state) => {
    serve([aVersion({ state })]);
    renderAt("/t/acme/adapters/support-bot");
    await screen.findByRole("button", { name: "Show version 1" });
    expect(screen.queryByRole("region", { name: "Use it" })).toBeNull();
  },
);

test("how to use it stays beside a rejected version while another is active", async () => {
  serve([aVersion({ number: 2, state: "rejected" }), aVersion({ state: "active" })]);
  renderAt("/t/acme/adapters/support-bot?version=2");
  expect(await screen.findByRole("region", { name: "Use it" })).toBeVisible();
});

test("the snippet names this model", async () => {
  serve([aVersion({ state: "active" })]);
  renderAt("/t/acme/adapters/support-bot");
  const snippet = await screen.findByLabelText("curl command");
  expect(snippet).toHaveTextContent("curl http://localhost:3000/v1/chat/completions");
  expect(snippet).toHaveTextContent('"model": "support-bot"');
});
