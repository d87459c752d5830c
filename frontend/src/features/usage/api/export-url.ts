import { apiPeriod, type UsagePeriod } from "../period";

/** A plain link: the browser streams the file to disk, the session cookie goes along. */
export function exportUrl(tenant: string, period: UsagePeriod, format: "csv" | "jsonl"): string {
  const query = new URLSearchParams({ format, ...apiPeriod(period) });
  return `/api/tenants/${encodeURIComponent(tenant)}/usage/export/?${query.toString()}`;
}
