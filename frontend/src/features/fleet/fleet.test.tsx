import { screen, waitFor, within } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { expect, test } from "vitest";
import type { FleetEvent, Replica } from "@/lib/types";
import { SESSION } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { page, SESSION_URL, server } from "@/testing/server";

const FLEET_URL = "http://localhost:3000/api/fleet/";
const OPERATOR = { ...SESSION, user: { login: "oscar", is_operator: true } };

function aReplica(fields: Partial<Replica> = {}): Replica {
  return {
    id: 7,
    url: "http://10.0.0.1:8100",
    dialect: "grafthouse",
    healthy: true,
    draining_since: null,
    drained_by: "",
    last_seen: "2026-03-05T10:00:00Z",
    error: "",
    state: {},
    placements: [],
    ...fields,
  };
}

test("draining asks first, shows, and is undone", async () => {
  let replica = aReplica();
  const acts: unknown[] = [];
  const events: FleetEvent[] = [];
  server.use(
    http.get(SESSION_URL, () => HttpResponse.json(OPERATOR)),
    http.get(FLEET_URL, () => page([replica])),
    http.get(`${FLEET_URL}events/`, () => page(events)),
    http.post(`${FLEET_URL}:id/:act/`, ({ params }) => {
      acts.push([params.id, params.act]);
      const action = params.act === "drain" ? "replica.drained" : "replica.resumed";
      events.unshift({
        at: `2026-03-05T11:0${acts.length}:00Z`,
        actor: "oscar",
        action,
        target: replica.url,
      });
      const isDraining = params.act === "drain";
      replica = isDraining
        ? aReplica({ draining_since: "2026-03-05T11:00:00Z", drained_by: "oscar" })
        : aReplica();
      return HttpResponse.json(replica);
    }),
  );
  const { user } = renderAt("/fleet");
  expect(screen.queryByRole("table", { name: "What operators did" })).not.toBeInTheDocument();
  await user.click(await screen.findByRole("button", { name: `Drain ${replica.url}` }));
  expect(acts).toEqual([]);
  const dialog = await screen.findByRole("dialog");
  await user.click(within(dialog).getByRole("button", { name: "Drain replica" }));
  expect(await screen.findByText("Draining")).toBeVisible();

  await user.click(await screen.findByRole("button", { name: `Resume ${replica.url}` }));
  await waitFor(() => expect(screen.queryByText("Draining")).not.toBeInTheDocument());
  expect(acts).toEqual([
    ["7", "drain"],
    ["7", "resume"],
  ]);
  const rows = within(await screen.findByRole("table", { name: "What operators did" }));
  await rows.findByText("replica.resumed");
  const said = rows.getAllByRole("row").slice(1);
  expect(said.map((row) => row.textContent)).toEqual([
    expect.stringMatching(/oscarreplica\.resumedhttp:\/\/10\.0\.0\.1:8100$/),
    expect.stringMatching(/oscarreplica\.drainedhttp:\/\/10\.0\.0\.1:8100$/),
  ]);
});
