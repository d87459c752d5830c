import { Alert, Paper, Text } from "@mantine/core";
import { useEffect, useState } from "react";
import { FactGrid } from "@/components/fact-grid";
import { type ConfigSummary, summarizeConfig } from "../read-config";

export function ConfigPreview({ config }: { config: File }) {
  const [summary, setSummary] = useState<ConfigSummary>();
  useEffect(() => {
    let isCurrent = true;
    void config.text().then((text) => {
      if (isCurrent) setSummary(summarizeConfig(text));
    });
    return () => {
      isCurrent = false;
    };
  }, [config]);
  if (!summary) return null;
  if (summary.problem !== undefined) {
    return (
      <Alert color="yellow" role="alert" title={config.name}>
        {summary.problem}
      </Alert>
    );
  }
  return (
    <Paper p="sm">
      <Text fz="xs" c="dimmed" mb={6}>
        From {config.name}
      </Text>
      <FactGrid facts={summary.facts} />
    </Paper>
  );
}
