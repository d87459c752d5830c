import { Button, Menu } from "@mantine/core";
import { IconDownload } from "@tabler/icons-react";
import { usePermissions } from "@/lib/tenant";
import { exportUrl } from "../api/export-url";
import type { UsagePeriod } from "../period";

export function ExportMenu({ tenant, period }: { tenant: string; period: UsagePeriod }) {
  const permissions = usePermissions(tenant);
  // As the server has it: whoever may look at the rows may take them along.
  if (!permissions.has("usage") && !permissions.has("read")) return null;
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <Button variant="default" leftSection={<IconDownload size={16} />}>
          Export
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item component="a" href={exportUrl(tenant, period, "csv")} download>
          CSV
        </Menu.Item>
        <Menu.Item component="a" href={exportUrl(tenant, period, "jsonl")} download>
          JSON Lines
        </Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}
