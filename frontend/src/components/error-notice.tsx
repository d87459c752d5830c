import { Alert, Button, List, Text } from "@mantine/core";
import { IconAlertTriangle } from "@tabler/icons-react";
import { ApiError, messageOf } from "@/lib/errors";

interface ErrorNoticeProps {
  error: unknown;
  title?: string;
  onRetry?: () => void;
}

export function ErrorNotice({ error, title = "This did not work", onRetry }: ErrorNoticeProps) {
  const details = error instanceof ApiError ? error.details : [];
  const message = error instanceof ApiError ? error.message : messageOf(error);
  return (
    <Alert
      color="red"
      variant="light"
      role="alert"
      icon={<IconAlertTriangle size={18} />}
      title={title}
    >
      <Text>{message}</Text>
      {details.length > 0 && (
        <List size="sm" mt={6}>
          {details.map((detail) => (
            <List.Item key={detail}>{detail}</List.Item>
          ))}
        </List>
      )}
      {onRetry !== undefined && (
        <Button size="xs" variant="default" mt="sm" onClick={onRetry}>
          Try again
        </Button>
      )}
    </Alert>
  );
}
