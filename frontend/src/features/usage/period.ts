import { DEFAULT_USAGE_DAYS } from "@/config/app";

/** Calendar days in UTC, both included, as the address and the date fields hold them. */
export interface UsagePeriod {
  from: string;
  to: string;
}

const DAY_MS = 86_400_000;

export function isoDay(time: number): string {
  return new Date(time).toISOString().slice(0, 10);
}

export function lastDays(numDays: number, now = Date.now()): UsagePeriod {
  return { from: isoDay(now - (numDays - 1) * DAY_MS), to: isoDay(now) };
}

export function periodOf(from: string | undefined, to: string | undefined): UsagePeriod {
  const usual = lastDays(DEFAULT_USAGE_DAYS);
  const period = { from: from ?? usual.from, to: to ?? usual.to };
  return period.from <= period.to ? period : { from: period.to, to: period.from };
}

/** The same period as the API takes it: half-open, the day after the last is not included. */
export function apiPeriod({ from, to }: UsagePeriod): UsagePeriod {
  return { from, to: isoDay(Date.parse(to) + DAY_MS) };
}

const MAX_DAYS_CHARTED = 400;

/** Every day of the period: a chart must show the days on which nothing happened too. */
export function daysOf({ from, to }: UsagePeriod): string[] {
  const days: string[] = [];
  for (let time = Date.parse(from); time <= Date.parse(to); time += DAY_MS) {
    if (days.length === MAX_DAYS_CHARTED) break;
    days.push(isoDay(time));
  }
  return days;
}
