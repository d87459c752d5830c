import createClient from "openapi-fetch";
import { csrfToken } from "./cookies";
import { ApiError, errorFrom, unreachable } from "./errors";
import type { paths } from "./schema.gen";

const SAFE = new Set(["GET", "HEAD", "OPTIONS"]);

/** The admin API, typed by the server's own schema. Same origin: the session cookie goes along. */
export const api = createClient<paths>({
  baseUrl: window.location.origin,
  // Looked up at each call, so that tests may put their own in place.
  fetch: (request) => globalThis.fetch(request),
});

api.use({
  onRequest({ request }) {
    if (!SAFE.has(request.method)) request.headers.set("X-CSRFToken", csrfToken());
  },
});

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** The answer's body, or a thrown ApiError. Every request file goes through here. */
export async function unwrap<T>(call: Promise<Answer<T>>): Promise<T> {
  let answer: Answer<T>;
  try {
    answer = await call;
  } catch (error) {
    if (error instanceof ApiError || isAbort(error)) throw error;
    throw unreachable();
  }
  if (!answer.response.ok) throw errorFrom(answer.response.status, answer.error);
  return answer.data as T;
}

function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}
