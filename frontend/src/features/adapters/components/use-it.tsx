import { Group, Paper, Tabs, Text, Title } from "@mantine/core";
import { CodeBlock } from "@/components/code-block";
import { TextLink } from "@/components/link";
import { usePermissions } from "@/lib/tenant";
import { curlSnippet, pythonSnippet } from "../snippets";

interface UseItProps {
  tenant: string;
  model: string;
}

export function UseIt({ tenant, model }: UseItProps) {
  const { origin } = window.location;
  const permissions = usePermissions(tenant);
  return (
    <Paper p="md" component="section" aria-label="Use it">
      <Group justify="space-between" mb={4}>
        <Title order={2}>Use it</Title>
        {permissions.has("keys") && (
          <TextLink to="/t/$tenant/keys" params={{ tenant }} fz="sm">
            Get an API key
          </TextLink>
        )}
      </Group>
      <Text c="dimmed" mb="sm">
        Any OpenAI client works: only the address, the key and the model name are ours.
      </Text>
      <Tabs defaultValue="curl" keepMounted={false}>
        <Tabs.List mb="sm">
          <Tabs.Tab value="curl">curl</Tabs.Tab>
          <Tabs.Tab value="python">Python</Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="curl">
          <CodeBlock code={curlSnippet(origin, model)} label="curl command" />
        </Tabs.Panel>
        <Tabs.Panel value="python">
          <CodeBlock code={pythonSnippet(origin, model)} label="Python code" />
        </Tabs.Panel>
      </Tabs>
    </Paper>
  );
}
