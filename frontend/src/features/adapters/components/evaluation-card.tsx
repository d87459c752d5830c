import { Alert, Group, Paper, Progress, Stack, Text, Title } from "@mantine/core";
import { IconAlertTriangle } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { RelativeTime } from "@/components/relative-time";
import { shortDigest } from "@/lib/format";
import { usePermissions } from "@/lib/tenant";
import type { EvalSet, Evaluation, Version } from "@/lib/types";
import { evalSetQuery } from "../api/get-eval-set";
import { isInWork, latestEvaluationQuery } from "../api/list-evaluations";
import { EvalSetLine } from "./eval-set-line";
import { EvaluateButton } from "./evaluate-button";
import { GateSelect } from "./gate-select";
import { GoldenAnswers } from "./golden-answers";
import { LossTable } from "./loss-table";

interface EvaluationCardProps {
  tenant: string;
  name: string;
  version: Version;
}

function Running({ evaluation }: { evaluation: Evaluation }) {
  const { status, num_done, num_steps } = evaluation;
  const words =
    status === "queued"
      ? "Waiting for a replica that holds this version."
      : `Measuring: ${num_done} of ${num_steps} steps.`;
  return (
    <div aria-live="polite">
      <Text c="dimmed" fz="sm" mb={6}>
        {words}
      </Text>
      <Progress
        aria-label="Progress of the evaluation"
        value={(100 * num_done) / Math.max(num_steps, 1)}
        animated
      />
    </div>
  );
}

function Measured({ evaluation, evalSet }: { evaluation: Evaluation; evalSet: EvalSet | null }) {
  const { results, num_examples, eval_set_sha256, model, finished_at } = evaluation;
  if (results === null) return null;
  const isOther = evalSet !== null && evalSet.sha256 !== eval_set_sha256;
  return (
    <>
      <LossTable contenders={results.contenders} />
      <Text c="dimmed" fz="xs">
        Mean negative log-likelihood of the right answers’ tokens; lower is better. {num_examples}{" "}
        examples of eval set {shortDigest(eval_set_sha256)} on {model}
        {finished_at !== null && (
          <>
            , <RelativeTime iso={finished_at} />
          </>
        )}
        .{isOther && " The eval set has changed since."}
      </Text>
      <GoldenAnswers golden={results.golden} />
    </>
  );
}

/** Is this version better than the base, and than the base told in words? */
export function EvaluationCard({ tenant, name, version }: EvaluationCardProps) {
  const permissions = usePermissions(tenant);
  const { data: evalSet } = useQuery(evalSetQuery(tenant, name));
  const { data: latest } = useQuery(latestEvaluationQuery(tenant, name, version.number));
  if (evalSet === undefined || latest === undefined) return null;
  const canChange = permissions.has("adapters");
  const isRunning = isInWork(latest ?? undefined);
  return (
    <Paper p="md" component="section" aria-label="Evaluation">
      <Stack gap="md">
        <Group justify="space-between">
          <Title order={2}>Evaluation</Title>
          {canChange && (
            <EvaluateButton
              key={version.number}
              tenant={tenant}
              name={name}
              number={version.number}
              lastPrompt={latest?.system_prompt ?? ""}
              isDisabled={evalSet === null || isRunning}
            />
          )}
        </Group>
        <EvalSetLine tenant={tenant} name={name} evalSet={evalSet} canChange={canChange} />
        {latest && isRunning && <Running evaluation={latest} />}
        {latest?.status === "failed" && (
          <Alert
            color="red"
            icon={<IconAlertTriangle size={18} />}
            title="It could not be evaluated"
          >
            {latest.error}
          </Alert>
        )}
        {latest && <Measured evaluation={latest} evalSet={evalSet} />}
        <GateSelect tenant={tenant} name={name} canChange={canChange} />
      </Stack>
    </Paper>
  );
}
