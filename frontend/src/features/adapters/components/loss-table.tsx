import { Table, Text } from "@mantine/core";
import { NoValue } from "@/components/table-card";
import { formatCount } from "@/lib/format";
import type { Contender } from "@/lib/types";
import { lossRows } from "../losses";

function Difference({
  text,
  isBetter,
  isWorse,
}: {
  text: string;
  isBetter: boolean;
  isWorse: boolean;
}) {
  if (text === "") return <NoValue />;
  const color = isBetter ? "graft" : isWorse ? "red" : "dimmed";
  const words = isBetter ? "better" : isWorse ? "worse" : "the same";
  return (
    <Text component="span" c={color} fz="inherit" fw={550}>
      {text} {words}
    </Text>
  );
}

/** What each contender lost on the same tokens; lower is better. */
export function LossTable({ contenders }: { contenders: Contender[] }) {
  return (
    <Table.ScrollContainer minWidth={420} type="native">
      <Table aria-label="Losses">
        <Table.Thead>
          <Table.Tr>
            <Table.Th />
            <Table.Th ta="right">Loss</Table.Th>
            <Table.Th ta="right">Perplexity</Table.Th>
            <Table.Th ta="right">Tokens</Table.Th>
            <Table.Th ta="right">Beside the base</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {lossRows(contenders).map((row) => (
            <Table.Tr key={row.name}>
              <Table.Td fw={row.name === "adapter" ? 600 : undefined}>{row.label}</Table.Td>
              <Table.Td ta="right" className="tabular">
                {row.loss}
              </Table.Td>
              <Table.Td ta="right" className="tabular">
                {row.perplexity}
              </Table.Td>
              <Table.Td ta="right" className="tabular">
                {formatCount(row.numTokens)}
              </Table.Td>
              <Table.Td ta="right" className="tabular">
                <Difference text={row.difference} isBetter={row.isBetter} isWorse={row.isWorse} />
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Table.ScrollContainer>
  );
}
