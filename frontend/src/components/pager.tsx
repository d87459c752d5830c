import { Button, Group, Text } from "@mantine/core";
import { PAGE_SIZE } from "@/config/app";
import { formatCount } from "@/lib/format";

interface PagerProps {
  /** From 1. */
  page: number;
  count: number;
  onPage: (page: number) => void;
}

export function Pager({ page, count, onPage }: PagerProps) {
  if (count <= PAGE_SIZE && page === 1) return null;
  const first = (page - 1) * PAGE_SIZE + 1;
  const last = Math.min(page * PAGE_SIZE, count);
  return (
    <Group justify="space-between" px="md" py="sm" component="nav" aria-label="Pages">
      <Text c="dimmed" fz="xs" className="tabular">
        {formatCount(first)}–{formatCount(last)} of {formatCount(count)}
      </Text>
      <Group gap="xs">
        <Button
          size="compact-sm"
          variant="default"
          disabled={page <= 1}
          onClick={() => onPage(page - 1)}
        >
          Previous
        </Button>
        <Button
          size="compact-sm"
          variant="default"
          disabled={last >= count}
          onClick={() => onPage(page + 1)}
        >
          Next
        </Button>
      </Group>
    </Group>
  );
}
