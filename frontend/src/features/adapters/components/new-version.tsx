import { Paper } from "@mantine/core";
import { VersionUpload } from "./version-upload";

interface NewVersionProps {
  tenant: string;
  name: string;
  onUploaded: (name: string, number: number) => void;
}

export function NewVersion({ tenant, name, onUploaded }: NewVersionProps) {
  return (
    <Paper p={{ base: "md", sm: "lg" }} maw={680}>
      <VersionUpload
        tenant={tenant}
        prepare={() => Promise.resolve(name)}
        onUploaded={onUploaded}
      />
    </Paper>
  );
}
