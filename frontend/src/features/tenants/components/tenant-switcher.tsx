import { Button, Combobox, Group, ScrollArea, Text, useCombobox } from "@mantine/core";
import { IconCheck, IconSelector } from "@tabler/icons-react";
import { useState } from "react";
import type { TenantRef } from "@/lib/types";

interface TenantSwitcherProps {
  tenants: TenantRef[];
  current: string | undefined;
  onSwitch: (slug: string) => void;
}

function matches(tenant: TenantRef, query: string): boolean {
  return `${tenant.name} ${tenant.slug}`.toLowerCase().includes(query.trim().toLowerCase());
}

const SEARCHABLE_FROM = 8;

export function TenantSwitcher({ tenants, current, onSwitch }: TenantSwitcherProps) {
  const [query, setQuery] = useState("");
  const combobox = useCombobox({ onDropdownClose: () => setQuery("") });
  const name = tenants.find((tenant) => tenant.slug === current)?.name ?? current;
  const shown = tenants.filter((tenant) => matches(tenant, query));
  return (
    <Combobox
      store={combobox}
      width={260}
      position="bottom-start"
      onOptionSubmit={(slug) => {
        combobox.closeDropdown();
        onSwitch(slug);
      }}
    >
      <Combobox.Target targetType="button">
        <Button
          variant="default"
          size="sm"
          px={10}
          maw={220}
          aria-label={`Tenant: ${name ?? "choose one"}`}
          rightSection={<IconSelector size={15} opacity={0.6} />}
          onClick={() => combobox.toggleDropdown()}
        >
          <Text component="span" truncate fz="sm" fw={550}>
            {name ?? "Choose a tenant"}
          </Text>
        </Button>
      </Combobox.Target>
      <Combobox.Dropdown>
        {tenants.length >= SEARCHABLE_FROM && (
          <Combobox.Search
            value={query}
            onChange={(event) => setQuery(event.currentTarget.value)}
            placeholder="Find a tenant"
            aria-label="Find a tenant"
          />
        )}
        <Combobox.Options>
          <ScrollArea.Autosize mah={320}>
            {shown.map((tenant) => (
              <Combobox.Option
                key={tenant.slug}
                value={tenant.slug}
                active={tenant.slug === current}
              >
                <Group justify="space-between" wrap="nowrap">
                  <div>
                    <Text fz="sm" fw={550}>
                      {tenant.name}
                    </Text>
                    <Text fz="xs" c="dimmed" ff="monospace">
                      {tenant.slug}
                    </Text>
                  </div>
                  {tenant.slug === current && <IconCheck size={16} />}
                </Group>
              </Combobox.Option>
            ))}
            {shown.length === 0 && <Combobox.Empty>No such tenant</Combobox.Empty>}
          </ScrollArea.Autosize>
        </Combobox.Options>
      </Combobox.Dropdown>
    </Combobox>
  );
}
