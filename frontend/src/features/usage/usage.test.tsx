import { screen, within } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { expect, test } from "vitest";
import { TOTALS } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, page, server } from "@/testing/server";
import { chartData } from "./chart-data";
import { daysOf } from "./period";

const ROW = {
  request_id: "req-1",
  started_at: "2026-03-05T10:00:00Z",
  ended_at: "2026-03-05T10:00:01Z",
  status: "failed",
  error_code: "replica_lost",
  model: "support-bot@2",
  prompt_tokens: 11,
  cached_tokens: null,
  completion_tokens: 7,
  cost: "0.000018",
};

test("the period of the address is asked for, half-open, and exported", async () => {
  const asked: string[] = [];
  server.use(
    http.get(at("usage/summary/"), ({ request }) => {
      asked.push(new URL(request.url).search);
      const by_day_and_adapter = [{ ...TOTALS, day: "2026-03-05", adapter: "support-bot" }];
      return HttpResponse.json({ total: TOTALS, by_day_and_adapter });
    }),
    http.get(at("usage/"), () => page([ROW])),
  );
  const { user, router } = renderAt("/t/acme/usage?from=2026-03-01&to=2026-03-05");
  expect(await screen.findByText("42", {}, { timeout: 15_000 })).toBeVisible();
  expect(screen.getByText("25 % from the prefix cache")).toBeVisible();
  const row = await screen.findByRole("row", { name: /support-bot@2/ });
  expect(row).toHaveTextContent("failed117$0.000018".replace("failed117", "failed11–7"));

  await user.click(screen.getByRole("button", { name: "Export" }));
  const link = await screen.findByRole("menuitem", { name: "JSON Lines" });
  expect(link).toHaveAttribute(
    "href",
    "/api/tenants/acme/usage/export/?format=jsonl&from=2026-03-01&to=2026-03-06",
  );
  const legend = within(screen.getByRole("list", { name: "Adapters in the chart" }));
  expect(await legend.findByText("support-bot")).toBeVisible();
  // However long the period, one question.
  expect(asked).toEqual(["?from=2026-03-01&to=2026-03-06"]);
  expect(router.state.location.search).toEqual({ from: "2026-03-01", to: "2026-03-05" });
});

test("a month's limit that is half used is said, the last word of each limit", async () => {
  const month = new Date().toISOString().slice(0, 7);
  const notice = { at: ROW.started_at, key: null, key_name: null, month, used: "0", limit: "20" };
  server.use(
    http.get(at("usage/summary/"), () =>
      HttpResponse.json({ total: TOTALS, by_day_and_adapter: [] }),
    ),
    http.get(at("usage/"), () => page([])),
    http.get(at("notices/"), () =>
      page([
        { ...notice, kind: "money", percent: 100 },
        { ...notice, kind: "money", percent: 80 },
        { ...notice, kind: "tokens", percent: 50, limit: "2000000", key: "k1", key_name: "ci" },
        { ...notice, kind: "tokens", percent: 80, month: "2020-01" },
      ]),
    ),
  );
  renderAt("/t/acme/usage");
  const timeout = { timeout: 15_000 };
  expect(
    await screen.findByText("This month's budget of $20.00 is spent.", {}, timeout),
  ).toBeVisible();
  const said = screen.getAllByRole("alert").map((one) => one.textContent);
  expect(said).toEqual([
    "This month's budget of $20.00 is spent.",
    "Key ci: this month's limit of 2M tokens is used to 50 %.",
  ]);
});

test("the chart has every day, stacks by adapter and sums the small ones up", () => {
  const days = daysOf({ from: "2026-02-27", to: "2026-03-02" });
  expect(days).toEqual(["2026-02-27", "2026-02-28", "2026-03-01", "2026-03-02"]);
  const rows = Array.from({ length: 10 }, (_, index) => ({
    ...TOTALS,
    num_requests: 100 - index,
    day: "2026-02-28",
    adapter: index === 0 ? "" : `a${index}`,
  }));
  const data = chartData(rows, days, "requests");
  expect(data.series).toEqual(["base model", "a1", "a2", "a3", "a4", "a5", "a6", "others"]);
  expect(data.days[0]?.bySeries).toEqual({});
  expect(data.days[1]?.bySeries.others).toBe(93 + 92 + 91);
});
