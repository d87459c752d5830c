import { Group, Select, Text } from "@mantine/core";
import type { ReactNode } from "react";
import type { Adapter, Version } from "@/lib/types";
import { BASE, type Duel, versionOptions } from "../duel";
import classes from "./playground.module.css";

interface ModelHeadProps {
  baseModel: string;
  adapters: Adapter[];
  versions: Version[];
  duel: Duel;
  onDuel: (duel: Duel) => void;
}

function Side({ title, children }: { title: string; children: ReactNode }) {
  return (
    <div className={classes.side}>
      <Text fz="xs" c="dimmed" fw={550} mb={4}>
        {title}
      </Text>
      {children}
    </div>
  );
}

export function ModelHead({ baseModel, adapters, versions, duel, onDuel }: ModelHeadProps) {
  const options = versionOptions(versions);
  const names = adapters.map((adapter) => adapter.name);
  return (
    <div className={classes.head} style={{ paddingInline: 0 }}>
      <div className={classes.sides}>
        <Side title="Compare">
          <Select
            aria-label="Compare with"
            data={[
              { value: BASE, label: `${baseModel} (base model)` },
              ...options.map(({ value, label }) => ({ value, label: `${duel.adapter} ${label}` })),
            ]}
            value={duel.against}
            allowDeselect={false}
            onChange={(against) => onDuel({ ...duel, against: against ?? BASE })}
          />
        </Side>
        <Side title="With">
          <Group gap="xs" wrap="nowrap">
            <Select
              aria-label="Adapter"
              data={names}
              value={duel.adapter}
              searchable
              allowDeselect={false}
              flex={1}
              onChange={(adapter) =>
                onDuel({ adapter: adapter ?? "", version: undefined, against: BASE })
              }
            />
            <Select
              aria-label="Version"
              data={options}
              value={duel.version === undefined ? null : String(duel.version)}
              placeholder="active"
              clearable
              w={{ base: 92, sm: 130 }}
              onChange={(version) =>
                onDuel({ ...duel, version: version === null ? undefined : Number(version) })
              }
            />
          </Group>
        </Side>
      </div>
    </div>
  );
}
