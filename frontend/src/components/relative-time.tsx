import { Text, Tooltip } from "@mantine/core";
import { useEffect, useState } from "react";
import { formatDateTime, formatRelative } from "@/lib/format";

const REFRESH_MS = 30_000;

export function RelativeTime({ iso }: { iso: string }) {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  return (
    <Tooltip label={formatDateTime(iso)}>
      <Text component="time" dateTime={iso} fz="inherit" style={{ whiteSpace: "nowrap" }}>
        {formatRelative(iso, now)}
      </Text>
    </Tooltip>
  );
}
