import { act, screen, waitFor } from "@testing-library/react";
import { http, HttpResponse } from "msw";
import { beforeEach, expect, test, vi } from "vitest";
import { anAdapter, aVersion } from "@/testing/data";
import { dropFolder } from "@/testing/drop-folder";
import { FakeXhr } from "@/testing/fake-xhr";
import { renderAt } from "@/testing/render";
import { at, page, problem, server } from "@/testing/server";

const CONFIG = new File(['{"peft_type":"LORA","r":8,"lora_alpha":16}'], "adapter_config.json");
const WEIGHTS = new File(["weights"], "adapter_model.safetensors");

// Two headers, two files of a block each, and the end.
const TAR_BYTES = 4 * 512 + 1024;
const UPLOAD = {
  id: "upload_1",
  status: "pending",
  bytes: TAR_BYTES,
  max_part_bytes: 2048,
  parts: [],
  version: null,
};

beforeEach(() => {
  localStorage.clear();
  FakeXhr.forget();
});

function serveNewAdapter(created: unknown[]): void {
  server.use(
    http.post(at("adapters/"), async ({ request }) => {
      created.push(await request.json());
      return HttpResponse.json(anAdapter({ active_version: null }), { status: 201 });
    }),
    http.post(at("uploads/"), () => HttpResponse.json(UPLOAD)),
    http.get(at("uploads/upload_1/"), () => HttpResponse.json(UPLOAD)),
    http.post(at("uploads/upload_1/complete/"), () =>
      HttpResponse.json({ ...UPLOAD, status: "completed", version: { number: 1 } }),
    ),
    http.get(at("adapters/support-bot/"), () => HttpResponse.json(anAdapter())),
    http.get(at("adapters/support-bot/versions/"), () => page([aVersion({ state: "validating" })])),
  );
}

function newerThan(known: FakeXhr): FakeXhr {
  expect(FakeXhr.last()).not.toBe(known);
  return FakeXhr.last();
}

test("a new adapter: its files are shown, sent with progress, and its validation comes into view", async () => {
  vi.stubGlobal("XMLHttpRequest", FakeXhr);
  const created: unknown[] = [];
  serveNewAdapter(created);
  document.cookie = "csrftoken=t0ken";
  const { user, router } = renderAt("/t/acme/adapters/new");
  await user.type(await screen.findByRole("textbox", { name: "Name" }), "support-bot");
  const send = screen.getByRole("button", { name: "Upload and validate" });
  expect(send).toBeDisabled();
  await user.upload(screen.getByLabelText("Adapter files"), [CONFIG, WEIGHTS]);
  expect(await screen.findByText("Rank")).toBeVisible();
  await user.click(send);

  const xhr = await waitFor(() => FakeXhr.last());
  expect(created).toEqual([{ name: "support-bot", description: "" }]);
  expect(xhr.url).toMatch(
    /^\/api\/tenants\/acme\/uploads\/upload_1\/parts\/\?number=1&sha256=\w{64}$/,
  );
  expect(xhr.headers["X-CSRFToken"]).toBe("t0ken");
  const sent = xhr.form.get("data") as File;
  expect(sent.size).toBe(2048);
  act(() => xhr.progress(768, 2300));
  expect(await screen.findByText("Uploading: 768 B of 3.1 kB")).toBeVisible();
  expect(screen.getByRole("progressbar", { name: "Upload progress" })).toHaveAttribute(
    "aria-valuenow",
    "25",
  );

  // The connection drops between the parts: the second one is sent again, not the first.
  act(() => xhr.answer(200, {}));
  const second = await waitFor(() => newerThan(xhr));
  act(() => second.onerror?.());
  expect(await screen.findByText("Connection lost, trying again: 2.0 kB of 3.1 kB")).toBeVisible();
  const again = await waitFor(() => newerThan(second), { timeout: 3000 });
  expect(again.url).toBe(second.url);
  act(() => again.answer(200, {}));
  expect(await screen.findByText(/Reading the header/)).toBeVisible();
  expect(router.state.location.pathname).toBe("/t/acme/adapters/support-bot");
  vi.unstubAllGlobals();
});

test("a refused upload says why and may be tried again without making the adapter twice", async () => {
  vi.stubGlobal("XMLHttpRequest", FakeXhr);
  const created: unknown[] = [];
  serveNewAdapter(created);
  const { user } = renderAt("/t/acme/adapters/new");
  await user.type(await screen.findByRole("textbox", { name: "Name" }), "support-bot");
  await user.upload(screen.getByLabelText("Adapter files"), [CONFIG, WEIGHTS]);
  await user.click(screen.getByRole("button", { name: "Upload and validate" }));
  const xhr = await waitFor(() => FakeXhr.last());
  const error = { code: "too_large", message: "At most 1 GB.", details: [] };
  act(() => xhr.answer(413, { error }));
  expect(await screen.findByRole("alert")).toHaveTextContent("At most 1 GB.");

  await user.click(screen.getByRole("button", { name: "Upload and validate" }));
  await waitFor(() => expect(FakeXhr.last()).not.toBe(xhr));
  expect(created).toHaveLength(1);
  vi.unstubAllGlobals();
});

test("pickled weights are not taken, with the reason", async () => {
  const { user } = renderAt("/t/acme/adapters/support-bot/upload");
  const input = await screen.findByLabelText("Adapter files");
  input.removeAttribute("accept");
  await user.upload(input, new File(["x"], "adapter_model.bin"));
  expect(await screen.findByRole("alert")).toHaveTextContent("pickled weights can run code");
  expect(screen.getByRole("button", { name: "Upload and validate" })).toBeDisabled();
});

test("a name that is taken is told before anything is sent", async () => {
  server.use(http.post(at("adapters/"), () => problem(409, "conflict", "There is one already.")));
  const { user } = renderAt("/t/acme/adapters/new");
  await user.type(await screen.findByRole("textbox", { name: "Name" }), "support-bot");
  await user.upload(screen.getByLabelText("Adapter files"), new File(["PK"], "a.zip"));
  await user.click(screen.getByRole("button", { name: "Upload and validate" }));
  expect(await screen.findByRole("alert")).toHaveTextContent("There is one already.");
});

test("a dropped folder gives its two files, and says so when it has none", async () => {
  renderAt("/t/acme/adapters/support-bot/upload");
  await screen.findByLabelText("Adapter files");
  dropFolder("out", [new File(["x"], "README.md"), new File(["x"], "training_args.bin")]);
  expect(await screen.findByRole("alert")).toHaveTextContent(
    "out: the folder holds neither adapter_config.json nor adapter_model.safetensors.",
  );
  dropFolder("out", [WEIGHTS, new File(["x"], "training_args.bin"), CONFIG]);
  expect(await screen.findByRole("button", { name: "Remove adapter_config.json" })).toBeVisible();
  expect(screen.getByRole("button", { name: "Remove adapter_model.safetensors" })).toBeVisible();
  expect(screen.queryByRole("alert")).not.toBeInTheDocument();
  expect(screen.getByRole("button", { name: "Upload and validate" })).toBeEnabled();
});

test("a folder's chat template goes along, and may be left out", async () => {
  const { user } = renderAt("/t/acme/adapters/support-bot/upload");
  await screen.findByLabelText("Adapter files");
  const tokenizer = new File(["{}"], "tokenizer_config.json");
  dropFolder("out", [tokenizer, WEIGHTS, new File(["{}"], "tokenizer.json"), CONFIG]);
  const remove = await screen.findByRole("button", { name: "Remove tokenizer_config.json" });
  expect(screen.queryByText("tokenizer.json")).not.toBeInTheDocument();
  await user.click(remove);
  expect(screen.queryByText("tokenizer_config.json")).not.toBeInTheDocument();
  expect(screen.getByRole("button", { name: "Remove adapter_config.json" })).toBeVisible();
  expect(screen.getByRole("button", { name: "Upload and validate" })).toBeEnabled();
});

test.each([
  ["", "main"],
  [" v2 ", "v2"],
])("an import asks for the revision %j", async (typed, revision) => {
  const asked: unknown[] = [];
  const running = { id: 7, status: "running", version: null, error: "", error_code: "" };
  server.use(
    http.post(at("adapters/support-bot/imports/"), async ({ request }) => {
      asked.push(await request.json());
      return HttpResponse.json(running, { status: 202 });
    }),
    http.get(at("adapters/support-bot/imports/7/"), () =>
      HttpResponse.json({ ...running, status: "failed", error: `There is no '${revision}'.` }),
    ),
  );
  const { user } = renderAt("/t/acme/adapters/support-bot/upload");
  await user.type(await screen.findByLabelText("Hugging Face repository"), "owner/adapter");
  if (typed) await user.type(screen.getByLabelText("Revision"), typed);
  await user.click(screen.getByRole("button", { name: "Import and validate" }));
  expect(
    await screen.findByText(`There is no '${revision}'.`, {}, { timeout: 4000 }),
  ).toBeVisible();
  expect(asked).toEqual([{ repo_id: "owner/adapter", revision, token: "" }]);
});
