import { Progress, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { validationProgressQuery, type ValidationProgress } from "../api/validation-progress";

const WORDS: Record<ValidationProgress["stage"], string> = {
  joining: "Joining the parts.",
  unpacking: "Unpacking the archive.",
  header: "Reading the header and the configuration.",
  values: "Checking every value",
  digest: "Computing the digest.",
};

interface ValidationProgressBarProps {
  tenant: string;
  name: string;
  number: number;
}

/** Of a check that lasts; most are over before their first word. */
export function ValidationProgressBar({ tenant, name, number }: ValidationProgressBarProps) {
  const { data } = useQuery(validationProgressQuery(tenant, name, number));
  if (data === undefined) return null;
  const { stage, percent } = data;
  const isCounted = stage === "values";
  return (
    <div>
      <Text c="dimmed" fz="sm" mb={6} className="tabular">
        {isCounted ? `${WORDS[stage]}: ${percent} %.` : WORDS[stage]}
      </Text>
      {isCounted && <Progress aria-label="Progress of the check" value={percent} animated />}
    </div>
  );
}
