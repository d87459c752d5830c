import type { Notice } from "@/lib/types";

/** Of each limit of a month the last that was said; `notices` are newest first. */
export function latestOf(notices: readonly Notice[], month: string): Notice[] {
  const seen = new Set<string>();
  return notices.filter((notice) => {
    const limit = `${notice.key ?? ""} ${notice.kind}`;
    if (notice.month !== month || seen.has(limit)) return false;
    seen.add(limit);
    return true;
  });
}
