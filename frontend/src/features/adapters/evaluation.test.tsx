import { screen, waitFor, within } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { expect, test } from "vitest";
import type { Evaluation } from "@/lib/types";
import { anAdapter, anEvaluation, anEvalSet, aVersion } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, eventSocket, page, problem, server } from "@/testing/server";

const EVALUATIONS = at("adapters/support-bot/versions/1/evaluations/");

function serve(evaluations: Evaluation[], evalSet = anEvalSet()): void {
  server.use(
    http.get(at("adapters/support-bot/"), () => HttpResponse.json(anAdapter())),
    http.get(at("adapters/support-bot/versions/"), () => page([aVersion()])),
    http.get(at("adapters/support-bot/eval-set/"), () => HttpResponse.json(evalSet)),
    http.get(EVALUATIONS, () => page(evaluations.slice(0, 1))),
  );
}

async function card() {
  renderAt("/t/acme/adapters/support-bot");
  return within(await screen.findByRole("region", { name: "Evaluation" }));
}

test("the three contenders stand side by side, and golden answers below them", async () => {
  serve([anEvaluation()]);
  const shown = await card();
  const rows = within(await shown.findByRole("table", { name: "Losses" })).getAllByRole("row");
  expect(rows.map((row) => row.textContent)).toEqual([
    "LossPerplexityTokensBeside the base",
    "Base2.0007.39120–",
    "Base with system prompt2.0007.39120+0.000 the same",
    "This version0.5001.65120−1.500 better",
  ]);
  const golden = within(shown.getByRole("list", { name: "Golden prompts" }));
  const words = golden.getByRole("listitem").textContent;
  expect(words).toBe("2 + 2 =Expected4BaseperhapsBase with system prompt(nothing)This versionfour");
  expect(shown.queryByText(/has changed since/)).toBeNull();
});

test("an evaluation is begun with a prompt, and its progress follows the server's events", async () => {
  const evaluations: Evaluation[] = [];
  let asked: unknown;
  serve(evaluations);
  server.use(
    http.post(EVALUATIONS, async ({ request }) => {
      asked = await request.json();
      evaluations.unshift(anEvaluation({ status: "queued", results: null, num_done: 0 }));
      return HttpResponse.json(evaluations[0], { status: 202 });
    }),
  );
  const { user } = renderAt("/t/acme/adapters/support-bot");
  await screen.findByText("Live");
  await user.click(await screen.findByRole("button", { name: "Evaluate v1" }));
  const dialog = within(await screen.findByRole("dialog"));
  await user.type(dialog.getByLabelText(/System prompt for the base/), "Be brief.");
  await user.click(dialog.getByRole("button", { name: "Start" }));
  expect(await screen.findByText("Waiting for a replica that holds this version.")).toBeVisible();
  expect(asked).toEqual({ system_prompt: "Be brief." });
  expect(screen.getByRole("button", { name: "Evaluate v1" })).toBeDisabled();

  evaluations[0] = anEvaluation({ status: "running", results: null, num_done: 4 });
  const news = JSON.stringify({ type: "event", event: "evaluation.changed", data: {} });
  eventSocket.broadcast(news);
  await screen.findByText("Measuring: 4 of 9 steps.", {}, { timeout: 2_500 });
  evaluations[0] = anEvaluation();
  eventSocket.broadcast(news);
  expect(await screen.findByRole("table", { name: "Losses" })).toBeVisible();
});

test("without an eval set nothing is evaluated; a bad file is refused line by line", async () => {
  server.use(
    http.get(at("adapters/support-bot/"), () => HttpResponse.json(anAdapter())),
    http.get(at("adapters/support-bot/versions/"), () => page([aVersion()])),
    http.put(at("adapters/support-bot/eval-set/"), () =>
      problem(400, "invalid_eval_set", "line 2: completion: expected a text that is not empty"),
    ),
  );
  const { user } = renderAt("/t/acme/adapters/support-bot");
  expect(await screen.findByText(/No eval set yet/)).toBeVisible();
  expect(screen.getByRole("button", { name: "Evaluate v1" })).toBeDisabled();
  const input = document.querySelector<HTMLInputElement>('input[type="file"]');
  await user.upload(input as HTMLInputElement, new File(['{"prompt": "a"}'], "set.jsonl"));
  expect(await screen.findByRole("alert")).toHaveTextContent("line 2: completion: expected");
});

test("why one failed is said, and that the set has changed since", async () => {
  const error = "line 2: 600 tokens; the context holds 512";
  serve([anEvaluation({ status: "failed", results: null, error })]);
  const shown = await card();
  await waitFor(() => expect(shown.getByRole("alert")).toHaveTextContent(error));
});

test("figures of another set are marked", async () => {
  serve([anEvaluation()], anEvalSet({ sha256: "f".repeat(64) }));
  expect(await (await card()).findByText(/The eval set has changed since/)).toBeVisible();
});

test("the gate is the server's, and what bars an activation is said", async () => {
  let gate = "off";
  serve([anEvaluation()]);
  server.use(
    http.get(at("adapters/support-bot/gate/"), () => HttpResponse.json({ gate })),
    http.put(at("adapters/support-bot/gate/"), async ({ request }) => {
      ({ gate } = (await request.json()) as { gate: string });
      return HttpResponse.json({ gate });
    }),
    http.post(at("adapters/support-bot/versions/1/activate/"), () =>
      problem(409, "gate_refused", "support-bot@1 is worse than the base."),
    ),
  );
  const { user } = renderAt("/t/acme/adapters/support-bot");
  const select = await screen.findByLabelText("Gate");
  expect(select).toHaveValue("off");
  await user.selectOptions(select, "base");
  await waitFor(() => expect(select).toHaveValue("base"));
  expect(gate).toBe("base");
  await user.click(screen.getByRole("button", { name: "Activate v1" }));
  expect(await screen.findByText("support-bot@1 is worse than the base.")).toBeVisible();
});
