import { Group, Text } from "@mantine/core";

/** A scion set into its stock: two leaves on one stem. */
export function LogoMark({ size = 26 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 32 32" fill="none" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="#1f6b48" />
      <path d="M16 26V15" stroke="#fff" strokeWidth="2.6" strokeLinecap="round" />
      <path d="M16 17.5c0-5 2.6-8.6 8-9.5.3 5.6-2.4 9-8 9.5Z" fill="#a9e2c3" />
      <path d="M16 21c0-3.600-2-6.300-6.600-7-.2 4.300 2 6.700 6.600 7Z" fill="#fff" />
    </svg>
  );
}

export function Logo({ size = 26, fz = "lg" }: { size?: number; fz?: string }) {
  return (
    <Group gap={9} wrap="nowrap">
      <LogoMark size={size} />
      <Text component="span" fz={fz} fw={650} lts="-0.015em">
        Grafthouse
      </Text>
    </Group>
  );
}
