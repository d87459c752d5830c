import { http, HttpResponse, ws } from "msw";
import { setupServer } from "msw/node";
import { SESSION, TENANT } from "./data";

const ORIGIN = "http://localhost:3000";
const SOCKETS = "ws://localhost:3000/ws/v1";

/** A path of the acme tenant: at("keys/"). */
export function at(path: string): string {
  return `${ORIGIN}/api/tenants/acme/${path}`;
}

export const SESSION_URL = `${ORIGIN}/api/session`;

export function page(results: object[]) {
  return HttpResponse.json({ count: results.length, next: null, previous: null, results });
}

export function problem(status: number, code: string, message: string) {
  return HttpResponse.json({ error: { code, message, details: [] } }, { status });
}

export const eventSocket = ws.link(`${SOCKETS}/events`);
export const chatSocket = ws.link(`${SOCKETS}/chat`);

/** Answers the first frame as the server does. */
export const greetEvents = eventSocket.addEventListener("connection", ({ client }) => {
  client.addEventListener("message", () => client.send(JSON.stringify({ type: "ready" })));
});

/** Signed in as Alice, owner of acme, nothing set up. A test adds what its page asks for. */
export const server = setupServer(
  http.get(SESSION_URL, () => HttpResponse.json(SESSION)),
  http.get(`${ORIGIN}/api/tenants/`, () => page([{ slug: "acme", name: "Acme", plan: "Team" }])),
  http.get(at(""), () => HttpResponse.json(TENANT)),
  http.get(at("adapters/:name/versions/:number/profile/"), () => HttpResponse.json({})),
  http.get(at("notices/"), () => page([])),
  http.get(at("aliases/"), () => page([])),
  http.get(at("adapters/:name/gate/"), () => HttpResponse.json({ gate: "off" })),
  http.get(at("adapters/:name/eval-set/"), () => new HttpResponse(null, { status: 204 })),
  http.get(at("adapters/:name/versions/:number/evaluations/"), () => page([])),
  greetEvents,
);
