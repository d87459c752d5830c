import type { Profile } from "@/lib/types";

/** The numbers of a profile, as the server takes them. */
export const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1 },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.05 },
  { name: "top_k", label: "Top k", min: 1, max: 1_000_000 },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.05 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 10, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { name: "max_tokens", label: "Max tokens", min: 1, max: 1_000_000 },
  { name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER },
] as const;

export type NumberName = (typeof NUMBERS)[number]["name"];

/** As a form holds it: what is empty is not set. Stop words stand one a line. */
export interface ProfileValues extends Record<NumberName, number | string> {
  system_prompt: string;
  chat_template: string;
  stop: string;
}

const ESCAPES: Record<string, string> = { n: "\n", t: "\t", "\\": "\\" };

export function shownStop(stop: string): string {
  return stop.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t");
}

export function readStop(line: string): string {
  return line.replace(/\\([nt\\])/g, (_, escape: string) => ESCAPES[escape] ?? "");
}

export function valuesOf(profile: Profile): ProfileValues {
  const numbers = NUMBERS.map(({ name }) => [name, profile[name] ?? ""]);
  return {
    ...(Object.fromEntries(numbers) as Record<NumberName, number | string>),
    system_prompt: profile.system_prompt ?? "",
    chat_template: profile.chat_template ?? "",
    stop: (profile.stop ?? []).map(shownStop).join("\n"),
  };
}

export function profileOf(values: ProfileValues): Profile {
  const numbers = NUMBERS.map(({ name }) => {
    const value = values[name];
    return [name, value === "" ? null : Number(value)];
  });
  const stop = values.stop.split("\n").filter((line) => line !== "");
  return {
    ...(Object.fromEntries(numbers) as Record<NumberName, number | null>),
    system_prompt: values.system_prompt === "" ? null : values.system_prompt,
    chat_template: values.chat_template === "" ? null : values.chat_template,
    stop: stop.length === 0 ? null : stop.map(readStop),
  };
}

export function factsOfProfile(profile: Profile): [string, string][] {
  return NUMBERS.flatMap(({ name, label }) => {
    const value = profile[name];
    return value === null || value === undefined ? [] : [[label, String(value)]];
  });
}
