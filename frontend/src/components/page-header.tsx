import { Box, Group, Text, Title } from "@mantine/core";
import type { ReactNode } from "react";

interface PageHeaderProps {
  title: ReactNode;
  description?: ReactNode;
  actions?: ReactNode;
  above?: ReactNode;
}

export function PageHeader({ title, description, actions, above }: PageHeaderProps) {
  return (
    <Box mb="lg">
      {above}
      <Group justify="space-between" align="flex-end" gap="md">
        <Box flex={1} miw={220}>
          <Title order={1} lts="-0.015em">
            {title}
          </Title>
          {description !== undefined && description !== "" && (
            <Text c="dimmed" mt={2} maw={720}>
              {description}
            </Text>
          )}
        </Box>
        {actions !== undefined && <Group gap="xs">{actions}</Group>}
      </Group>
    </Box>
  );
}
