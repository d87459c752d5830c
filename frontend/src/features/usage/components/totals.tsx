import { SimpleGrid } from "@mantine/core";
import { Stat } from "@/components/stat";
import { formatCompact, formatCount, formatMoney } from "@/lib/format";
import type { UsageTotals } from "@/lib/types";

function percent(part: number, whole: number): string {
  return whole === 0 ? "0 %" : `${Math.round((part / whole) * 100)} %`;
}

export function Totals({ totals }: { totals: UsageTotals }) {
  const { num_requests, prompt_tokens, cached_tokens, completion_tokens, cost } = totals;
  return (
    <SimpleGrid cols={{ base: 2, md: 4 }} spacing="sm">
      <Stat label="Requests" value={formatCount(num_requests)} />
      <Stat
        label="Prompt tokens"
        value={formatCompact(prompt_tokens)}
        hint={`${percent(cached_tokens, prompt_tokens)} from the prefix cache`}
      />
      <Stat label="Completion tokens" value={formatCompact(completion_tokens)} />
      <Stat label="Cost" value={formatMoney(cost)} />
    </SimpleGrid>
  );
}
