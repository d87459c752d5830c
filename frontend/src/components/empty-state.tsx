import { Box, Paper, Stack, Text, ThemeIcon, Title } from "@mantine/core";
import type { ReactNode } from "react";

interface EmptyStateProps {
  icon: ReactNode;
  title: string;
  children: ReactNode;
  action?: ReactNode;
}

export function EmptyState({ icon, title, children, action }: EmptyStateProps) {
  return (
    <Paper p={{ base: "lg", sm: 48 }}>
      <Stack align="center" gap="sm" ta="center">
        <ThemeIcon size={48} radius={12} variant="light">
          {icon}
        </ThemeIcon>
        <Title order={2}>{title}</Title>
        <Text component="div" c="dimmed" maw={520}>
          {children}
        </Text>
        {action && <Box mt="xs">{action}</Box>}
      </Stack>
    </Paper>
  );
}
