import { Group, Paper, Skeleton, Stack, Table, Text, Title } from "@mantine/core";
import type { ReactNode } from "react";

interface TableCardProps {
  /** What a screen reader calls the table. */
  label: string;
  columns: ReactNode[];
  children: ReactNode;
  minWidth?: number;
  title?: string;
  actions?: ReactNode;
  footer?: ReactNode;
}

export function TableCard(props: TableCardProps) {
  const { label, columns, children, minWidth = 640, title, actions, footer } = props;
  return (
    <Paper style={{ overflow: "hidden" }}>
      {title !== undefined && (
        <Group justify="space-between" px="md" py="sm">
          <Title order={2}>{title}</Title>
          {actions}
        </Group>
      )}
      <Table.ScrollContainer minWidth={minWidth} type="native">
        <Table highlightOnHover aria-label={label}>
          <Table.Thead>
            <Table.Tr>
              {columns.map((column, index) => (
                <Table.Th key={index}>{column}</Table.Th>
              ))}
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>{children}</Table.Tbody>
        </Table>
      </Table.ScrollContainer>
      {footer}
    </Paper>
  );
}

export function TableSkeleton({ rows = 5 }: { rows?: number }) {
  return (
    <Paper p="md" role="status" aria-label="Loading">
      <Stack gap="md">
        {Array.from({ length: rows }, (_, index) => (
          <Skeleton key={index} height={18} width={`${92 - (index % 3) * 14}%`} />
        ))}
      </Stack>
    </Paper>
  );
}

export function NoValue({ children = "–" }: { children?: ReactNode }) {
  return (
    <Text component="span" c="dimmed" fz="inherit">
      {children}
    </Text>
  );
}
