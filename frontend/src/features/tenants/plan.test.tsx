import { screen, within } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { expect, test } from "vitest";
import type { TenantDetail } from "@/lib/types";
import { TENANT, TOTALS } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, page, server } from "@/testing/server";
import { metersOf } from "./meters";

const USED = { ...TOTALS, prompt_tokens: 1_000_000, completion_tokens: 640_000, cost: "3.50" };

function aTenant(limits: Partial<TenantDetail["limits"]>): TenantDetail {
  const none = { monthly_budget: null, ...limits };
  return { ...TENANT, limits: { ...TENANT.limits, ...none }, usage_this_month: USED };
}

async function planOf(detail: TenantDetail) {
  server.use(
    http.get(at(""), () => HttpResponse.json(detail)),
    http.get(at("usage/summary/"), () =>
      HttpResponse.json({ total: TOTALS, by_day_and_adapter: [] }),
    ),
    http.get(at("usage/"), () => page([])),
  );
  renderAt("/t/acme/usage");
  return within(await screen.findByRole("region", { name: "Plan" }, { timeout: 15_000 }));
}

test("tokens of a month and of a day are shown against their limits", async () => {
  const plan = await planOf(aTenant({ tokens_per_month: 2_000_000, tokens_per_day: 1_500 }));
  const month = plan.getByRole("progressbar", { name: "1.6M of 2M tokens this month" });
  expect(month).toHaveAttribute("aria-valuenow", "82");
  const day = plan.getByRole("progressbar", { name: "1.5K of 1.5K tokens today" });
  expect(day).toHaveAttribute("aria-valuenow", "100");
  expect(plan.getAllByRole("progressbar")).toHaveLength(2);
  // There is no budget: what the month cost is said all the same.
  expect(plan.getByText("$3.50")).toBeVisible();
});

test("money comes before tokens, the month before the day", () => {
  const limits = { monthly_budget: "7", daily_budget: "1", tokens_per_month: 4_100_000 };
  expect(metersOf(aTenant(limits))).toEqual([
    { name: "this month", used: "$3.50", limit: "$7.00", percent: 50 },
    { name: "tokens this month", used: "1.6M", limit: "4.1M", percent: 40 },
    { name: "today", used: "$0.0123", limit: "$1.00", percent: 1.23 },
  ]);
});

test("a limit of nothing is full, and more than all is all", () => {
  const limits = { monthly_budget: "0", tokens_per_month: 1_000 };
  expect(metersOf(aTenant(limits)).map((one) => one.percent)).toEqual([100, 100]);
});

test("without limits of a day or month there is nothing to fill", async () => {
  const plan = await planOf(aTenant({}));
  expect(plan.getByText("$3.50")).toBeVisible();
  expect(plan.queryByRole("progressbar")).not.toBeInTheDocument();
});
