import { Box, Button, Code, Group, Modal, Paper, Stack, Text, Title } from "@mantine/core";
import { IconPencil } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { CodeBlock } from "@/components/code-block";
import { ErrorNotice } from "@/components/error-notice";
import { FactGrid } from "@/components/fact-grid";
import { notifyDone } from "@/lib/notify";
import { usePermissions } from "@/lib/tenant";
import type { Profile } from "@/lib/types";
import { profileQuery } from "../api/get-profile";
import { useSetProfile } from "../api/set-profile";
import { factsOfProfile, shownStop } from "../profile";
import { ProfileForm } from "./profile-form";

interface ProfileCardProps {
  tenant: string;
  name: string;
  number: number;
}

function EditButton({ tenant, name, number, profile }: ProfileCardProps & { profile: Profile }) {
  const set = useSetProfile(tenant, name, number);
  const [isOpen, setIsOpen] = useState(false);
  function close(): void {
    setIsOpen(false);
    set.reset();
  }
  function save(values: Profile): void {
    set.mutate(values, {
      onSuccess: () => {
        notifyDone(`Saved the profile of ${name} v${number}`);
        close();
      },
    });
  }
  return (
    <>
      <Button
        size="compact-sm"
        variant="default"
        leftSection={<IconPencil size={14} />}
        aria-label={`Edit the serving profile of v${number}`}
        onClick={() => setIsOpen(true)}
      >
        Edit
      </Button>
      <Modal opened={isOpen} onClose={close} title={`Serving profile of v${number}`} size="lg">
        <ProfileForm
          profile={profile}
          isPending={set.isPending}
          error={set.error}
          onSubmit={save}
        />
      </Modal>
    </>
  );
}

function ProfileView({ profile }: { profile: Profile }) {
  const facts = factsOfProfile(profile);
  const stop = profile.stop ?? [];
  return (
    <Stack gap="md">
      {profile.system_prompt && (
        <Box>
          <Title order={3} mb={8}>
            System prompt
          </Title>
          <CodeBlock code={profile.system_prompt} label="system prompt" isWrapped />
        </Box>
      )}
      {stop.length > 0 && (
        <Group gap={8}>
          <Text c="dimmed" fz="sm">
            Stops at
          </Text>
          {stop.map((word) => (
            <Code key={word}>{shownStop(word)}</Code>
          ))}
        </Group>
      )}
      {facts.length > 0 && <FactGrid facts={facts} />}
      {profile.chat_template && (
        <Box>
          <Title order={3} mb={8}>
            Chat template
          </Title>
          <CodeBlock code={profile.chat_template} label="chat template" isWrapped />
        </Box>
      )}
    </Stack>
  );
}

function isEmpty(profile: Profile): boolean {
  return Object.values(profile).every((value) => value === null);
}

/** What requests for this version are filled in with where they say nothing. */
export function ProfileCard(props: ProfileCardProps) {
  const {
    data: profile,
    error,
    refetch,
  } = useQuery(profileQuery(props.tenant, props.name, props.number));
  const permissions = usePermissions(props.tenant);
  if (error) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  if (!profile) return null;
  return (
    <Paper p="md" component="section" aria-label="Serving profile">
      <Group justify="space-between" mb={4}>
        <Title order={2}>Serving profile</Title>
        {permissions.has("adapters") && (
          <EditButton key={props.number} {...props} profile={profile} />
        )}
      </Group>
      <Text c="dimmed" mb={isEmpty(profile) ? 0 : "md"}>
        {isEmpty(profile)
          ? "Nothing is set: requests are served as they come."
          : "Fills in what a request leaves out. The digest stays; a change holds within a second."}
      </Text>
      {!isEmpty(profile) && <ProfileView profile={profile} />}
    </Paper>
  );
}
