import { Paper, Text } from "@mantine/core";
import type { ReactNode } from "react";

interface StatProps {
  label: string;
  value: ReactNode;
  hint?: ReactNode;
}

export function Stat({ label, value, hint }: StatProps) {
  return (
    <Paper px="md" py="sm">
      <Text c="dimmed" fz="xs" fw={500}>
        {label}
      </Text>
      <Text fz={22} fw={620} lts="-0.02em" lh={1.35} className="tabular">
        {value}
      </Text>
      {hint !== undefined && (
        <Text c="dimmed" fz="xs">
          {hint}
        </Text>
      )}
    </Paper>
  );
}
