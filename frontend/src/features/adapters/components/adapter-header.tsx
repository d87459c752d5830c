import { Badge, Breadcrumbs, Group, Text } from "@mantine/core";
import { IconMessages, IconUpload } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { LinkButton, TextLink } from "@/components/link";
import { PageHeader } from "@/components/page-header";
import { humanize } from "@/lib/format";
import { usePermissions } from "@/lib/tenant";
import { adapterQuery } from "../api/get-adapter";
import { AdapterMenu } from "./adapter-menu";
import { KeepMenu } from "./keep-menu";

interface AdapterHeaderProps {
  tenant: string;
  name: string;
  isOperator: boolean;
  onDeleted: () => void;
}

export function AdapterHeader(props: AdapterHeaderProps) {
  const { tenant, name, isOperator } = props;
  const { data: adapter } = useQuery(adapterQuery(tenant, name));
  const permissions = usePermissions(tenant);
  return (
    <PageHeader
      title={
        <Group gap="sm">
          {name}
          {adapter && adapter.keep !== "no" && (
            <Badge color="blue" title="Replicas keep it near the device; an operator decides.">
              {humanize(adapter.keep)}
            </Badge>
          )}
        </Group>
      }
      description={adapter?.description}
      above={
        <Breadcrumbs mb={6} fz="sm" separator="/">
          <TextLink to="/t/$tenant/adapters" params={{ tenant }} fz="sm" c="dimmed">
            Adapters
          </TextLink>
          <Text c="dimmed" fz="sm">
            {name}
          </Text>
        </Breadcrumbs>
      }
      actions={
        <>
          {isOperator && adapter && <KeepMenu tenant={tenant} adapter={adapter} />}
          {permissions.has("inference") && (
            <LinkButton
              to="/t/$tenant/playground"
              params={{ tenant }}
              search={{ adapter: name }}
              variant="default"
              leftSection={<IconMessages size={16} />}
            >
              Try it
            </LinkButton>
          )}
          {permissions.has("adapters") && (
            <>
              <LinkButton
                to="/t/$tenant/adapters/$name/upload"
                params={{ tenant, name }}
                leftSection={<IconUpload size={16} />}
              >
                New version
              </LinkButton>
              <AdapterMenu
                tenant={tenant}
                name={name}
                isRetired={Boolean(adapter?.retired_at)}
                onDeleted={props.onDeleted}
              />
            </>
          )}
        </>
      }
    />
  );
}
