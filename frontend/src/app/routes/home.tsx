import { IconUsersGroup } from "@tabler/icons-react";
import { EmptyState } from "@/components/empty-state";

/** Only seen by who belongs to no tenant; everybody else is sent to the first of theirs. */
export function HomePage() {
  return (
    <EmptyState icon={<IconUsersGroup size={26} />} title="No tenant yet">
      You are signed in, but not a member of any tenant. Ask an operator to add you to one.
    </EmptyState>
  );
}
