import type { Contender } from "@/lib/types";

const NAMES: Record<Contender["name"], string> = {
  base: "Base",
  base_with_prompt: "Base with system prompt",
  adapter: "This version",
};

/** Below it two losses are the same: that much is rounding. */
const NOISE = 0.0005;

export interface LossRow {
  name: Contender["name"];
  label: string;
  loss: string;
  perplexity: string;
  numTokens: number;
  /** Of the base's loss, with its sign; empty for the base itself. */
  difference: string;
  isBetter: boolean;
  isWorse: boolean;
}

export function contenderLabel(name: Contender["name"]): string {
  return NAMES[name];
}

function shown(perplexity: number): string {
  return perplexity < 1e6 ? perplexity.toFixed(2) : perplexity.toExponential(1);
}

export function lossRows(contenders: Contender[]): LossRow[] {
  const base = contenders.find((one) => one.name === "base")?.loss ?? NaN;
  return contenders.map((one) => {
    const change = one.loss - base;
    const sign = change < 0 ? "−" : "+";
    return {
      name: one.name,
      label: contenderLabel(one.name),
      loss: one.loss.toFixed(3),
      perplexity: shown(one.perplexity),
      numTokens: one.num_tokens,
      difference: one.name === "base" ? "" : `${sign}${Math.abs(change).toFixed(3)}`,
      isBetter: change < -NOISE,
      isWorse: change > NOISE,
    };
  });
}
