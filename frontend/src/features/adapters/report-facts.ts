import { formatBytes, formatCount, humanize } from "@/lib/format";

function factText(name: string, value: unknown): string {
  if (typeof value === "number") {
    return name.endsWith("_bytes") ? formatBytes(value) : formatCount(value);
  }
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.map((item) => factText(name, item)).join(", ");
  if (typeof value === "object" && value !== null) {
    return Object.entries(value)
      .map(([key, item]) => `${key}: ${factText(key, item)}`)
      .join(", ");
  }
  return "";
}

/** The report's facts as the server names them, made readable; empty ones are left out. */
export function factsOf(facts: Record<string, unknown>): [string, string][] {
  return Object.entries(facts).flatMap(([name, value]): [string, string][] => {
    const text = factText(name, value);
    return text === "" ? [] : [[humanize(name.replace(/^num_|_bytes$/g, "")), text]];
  });
}
