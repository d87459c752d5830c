import type { NewKey } from "@/lib/types";

export interface Scope {
  value: NewKey["scopes"][number];
  label: string;
  description: string;
}

export const SCOPES: Scope[] = [
  { value: "inference", label: "Inference", description: "Call /v1: chat, completions, models" },
  { value: "adapters", label: "Adapters", description: "Upload, activate and delete adapters" },
  { value: "usage", label: "Usage", description: "Read and export usage" },
  { value: "admin", label: "Admin", description: "Everything, keys and audit log included" },
];

/** Empty: never. Otherwise days from now. */
export const LIFETIMES = [
  { value: "", label: "Never" },
  { value: "30", label: "In 30 days" },
  { value: "90", label: "In 90 days" },
  { value: "365", label: "In a year" },
];

/** Seconds for which a key that is rotated goes on working. */
export const DEFAULT_OVERLAP = "86400";
export const OVERLAPS = [
  { value: "0", label: "Not at all" },
  { value: "3600", label: "For an hour" },
  { value: DEFAULT_OVERLAP, label: "For a day" },
  { value: "604800", label: "For a week" },
  { value: "2592000", label: "For 30 days" },
];

const DAY_MS = 86_400_000;

export function expiryOf(lifetimeDays: string, now = Date.now()): string | null {
  return lifetimeDays === "" ? null : new Date(now + Number(lifetimeDays) * DAY_MS).toISOString();
}
