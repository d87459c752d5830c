import { Badge, Box, Code, Group, Stack, Text, Title } from "@mantine/core";
import { FactGrid } from "@/components/fact-grid";
import type { Problem, Report } from "@/lib/types";
import { factsOf } from "../report-facts";
import classes from "./report-view.module.css";

function Field({ name, value }: { name: string; value: string }) {
  if (value === "") return null;
  return (
    <>
      <Text component="dt" c="dimmed" fz="xs">
        {name}
      </Text>
      <Code component="dd" className={classes.value}>
        {value}
      </Code>
    </>
  );
}

function ProblemItem({ problem, color }: { problem: Problem; color: string }) {
  return (
    <li className={classes.problem} data-color={color}>
      <Group gap="xs" align="baseline">
        <Text fw={550} fz="sm" flex={1} miw={200}>
          {problem.message}
        </Text>
        <Badge color={color} ff="monospace" size="sm">
          {problem.code}
        </Badge>
      </Group>
      <dl className={classes.fields}>
        <Field name="Where" value={problem.where} />
        <Field name="Expected" value={problem.expected} />
        <Field name="Found" value={problem.found} />
      </dl>
    </li>
  );
}

interface ProblemsProps {
  title: string;
  problems: Problem[];
  color: string;
}

function Problems({ title, problems, color }: ProblemsProps) {
  if (problems.length === 0) return null;
  return (
    <Box>
      <Title order={3} mb={8}>
        {title}
      </Title>
      <ul className={classes.list} aria-label={title}>
        {problems.map((problem, index) => (
          <ProblemItem key={index} problem={problem} color={color} />
        ))}
      </ul>
    </Box>
  );
}

function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** Everything the validation found, all reasons at once. */
export function ReportView({ report }: { report: Report }) {
  const { problems, warnings } = report;
  const facts = factsOf(report.facts);
  return (
    <Stack gap="md">
      <Problems title={counted(problems.length, "problem")} problems={problems} color="red" />
      <Problems title={counted(warnings.length, "warning")} problems={warnings} color="yellow" />
      {facts.length > 0 && (
        <Box>
          <Title order={3} mb={8}>
            What was found
          </Title>
          <FactGrid facts={facts} />
        </Box>
      )}
    </Stack>
  );
}
