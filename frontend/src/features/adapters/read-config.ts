import * as z from "zod";

const configSchema = z.object({
  peft_type: z.string().optional(),
  base_model_name_or_path: z.string().nullish(),
  r: z.number().optional(),
  lora_alpha: z.number().optional(),
  use_rslora: z.boolean().optional(),
  target_modules: z.union([z.string(), z.array(z.string())]).nullish(),
});

export interface ConfigSummary {
  facts: [string, string][];
  problem?: string;
}

/** A glance at adapter_config.json before the upload. The server's validation is what counts. */
export function summarizeConfig(text: string): ConfigSummary {
  let raw: unknown;
  try {
    raw = JSON.parse(text);
  } catch {
    return { facts: [], problem: "This is not JSON." };
  }
  const parsed = configSchema.safeParse(raw);
  if (!parsed.success)
    return { facts: [], problem: "This does not look like PEFT's adapter_config.json." };
  const { peft_type, base_model_name_or_path, r, lora_alpha, use_rslora, target_modules } =
    parsed.data;
  const targets = Array.isArray(target_modules) ? target_modules.join(", ") : target_modules;
  const facts: [string, string | number | null | undefined][] = [
    ["Type", peft_type && (use_rslora ? `${peft_type} (rsLoRA)` : peft_type)],
    ["Rank", r],
    ["Alpha", lora_alpha],
    ["Targets", targets],
    ["Trained on", base_model_name_or_path],
  ];
  return {
    facts: facts.flatMap(([name, value]) =>
      value === null || value === undefined || value === "" ? [] : [[name, String(value)]],
    ),
  };
}
