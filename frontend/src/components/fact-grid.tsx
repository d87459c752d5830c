import { Text } from "@mantine/core";
import classes from "./fact-grid.module.css";

/** Names and values in aligned columns, as a definition list. */
export function FactGrid({ facts }: { facts: [string, string][] }) {
  return (
    <dl className={classes.grid}>
      {facts.map(([name, value]) => (
        <div className={classes.fact} key={name}>
          <Text component="dt" c="dimmed" fz="xs">
            {name}
          </Text>
          <Text component="dd" fz="sm" m={0} className={classes.value}>
            {value}
          </Text>
        </div>
      ))}
    </dl>
  );
}
