import { expect, test } from "vitest";
import { pack } from "./pack";

const CONFIG = new File(["{}"], "adapter_config.json");
const WEIGHTS = new File(["weights"], "adapter_model.safetensors");

test("what may hold a chat template is packed beside the pair", async () => {
  const template = new File(["{{ messages }}"], "chat_template.jinja");
  const pair = { kind: "pair", config: CONFIG, weights: WEIGHTS } as const;
  const packed = pack({ ...pair, templates: [template] });
  expect(packed.blob.size).toBe(pack({ ...pair, templates: [] }).blob.size + 2 * 512);
  expect(packed.fingerprint).toContain("chat_template.jinja");
  expect(await packed.blob.text()).toContain("{{ messages }}");
});
