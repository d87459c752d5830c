import { Alert, Stack } from "@mantine/core";
import { IconAlertTriangle } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { formatCompact, formatMoney } from "@/lib/format";
import type { Notice } from "@/lib/types";
import { noticesQuery } from "../api/list-notices";
import { latestOf } from "../notices";

const SPENT_PERCENT = 100;
const NEAR_PERCENT = 80;
const MONTH_CHARS = "2026-03".length;

function colorOf(percent: number): string {
  if (percent >= SPENT_PERCENT) return "red";
  return percent >= NEAR_PERCENT ? "yellow" : "blue";
}

function textOf({ key_name, kind, limit, percent }: Notice): string {
  const whose = key_name === null ? "This month's" : `Key ${key_name}: this month's`;
  const what =
    kind === "money"
      ? `budget of ${formatMoney(limit)}`
      : `limit of ${formatCompact(Number(limit))} tokens`;
  return `${whose} ${what} is ${percent >= SPENT_PERCENT ? "spent" : `used to ${percent} %`}.`;
}

/** How much of the limits of the month that runs is used, once half of one is. */
export function BudgetNotices({ tenant }: { tenant: string }) {
  const { data } = useQuery(noticesQuery(tenant));
  const month = new Date().toISOString().slice(0, MONTH_CHARS);
  const notices = latestOf(data?.results ?? [], month);
  if (notices.length === 0) return null;
  return (
    <Stack gap="xs">
      {notices.map((notice) => (
        <Alert
          key={`${notice.key ?? ""} ${notice.kind}`}
          color={colorOf(notice.percent)}
          icon={<IconAlertTriangle size={16} />}
          py="xs"
        >
          {textOf(notice)}
        </Alert>
      ))}
    </Stack>
  );
}
