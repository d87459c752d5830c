import { screen } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { expect, test } from "vitest";
import { SESSION, SIGNED_OUT } from "@/testing/data";
import { renderAt } from "@/testing/render";
import { at, page, problem, server, SESSION_URL } from "@/testing/server";

async function signIn(user: ReturnType<typeof renderAt>["user"], password: string) {
  await user.type(await screen.findByRole("textbox", { name: "Login" }), "alice");
  await user.type(screen.getByLabelText("Password"), password);
  await user.click(screen.getByRole("button", { name: "Sign in" }));
}

test("signing in leads back to where one wanted to go, with the CSRF token", async () => {
  const tokens: (string | null)[] = [];
  let isSignedIn = false;
  server.use(
    http.get(SESSION_URL, () => HttpResponse.json(isSignedIn ? SESSION : SIGNED_OUT)),
    http.post(SESSION_URL, ({ request }) => {
      tokens.push(request.headers.get("X-CSRFToken"));
      isSignedIn = true;
      return HttpResponse.json(SESSION);
    }),
    http.get(at("keys/"), () => page([])),
  );
  document.cookie = "csrftoken=t0ken";
  const { user, router } = renderAt("/t/acme/keys");
  await signIn(user, "secret");
  expect(await screen.findByRole("heading", { name: "API keys" })).toBeVisible();
  expect(router.state.location.pathname).toBe("/t/acme/keys");
  expect(tokens).toEqual(["t0ken"]);
});

test("a wrong password is told on the form", async () => {
  server.use(
    http.get(SESSION_URL, () => HttpResponse.json(SIGNED_OUT)),
    http.post(SESSION_URL, () =>
      problem(401, "invalid_login", "The login or the password is wrong."),
    ),
  );
  const { user } = renderAt("/sign-in");
  await signIn(user, "nope");
  expect(await screen.findByRole("alert")).toHaveTextContent("The login or the password is wrong.");
});

test("an address outside is not followed after signing in", async () => {
  let isSignedIn = false;
  server.use(
    http.get(SESSION_URL, () => HttpResponse.json(isSignedIn ? SESSION : SIGNED_OUT)),
    http.post(SESSION_URL, () => {
      isSignedIn = true;
      return HttpResponse.json(SESSION);
    }),
    http.get(at("adapters/"), () => page([])),
  );
  const { user, router } = renderAt("/sign-in?next=//evil.example/x");
  await signIn(user, "secret");
  expect(await screen.findByRole("heading", { name: "Adapters" })).toBeVisible();
  expect(router.state.location.pathname).toBe("/t/acme/adapters");
});

test("a session that ends while working leads to the sign-in page", async () => {
  let isSignedIn = true;
  server.use(
    http.get(SESSION_URL, () => HttpResponse.json(isSignedIn ? SESSION : SIGNED_OUT)),
    http.get(at("keys/"), () => {
      isSignedIn = false;
      return problem(401, "not_authenticated", "Sign in.");
    }),
  );
  const { router } = renderAt("/t/acme/keys");
  expect(await screen.findByRole("textbox", { name: "Login" })).toBeVisible();
  expect(router.state.location.search).toEqual({ next: "/t/acme/keys" });
});

test("a tenant that one is no member of is not found", async () => {
  renderAt("/t/globex/adapters");
  expect(await screen.findByRole("heading", { name: "There is nothing here" })).toBeVisible();
});
