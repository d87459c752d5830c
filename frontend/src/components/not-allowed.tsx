import { IconLock } from "@tabler/icons-react";
import { EmptyState } from "./empty-state";

interface NotAllowedProps {
  /** What is missing, to finish "Your role here cannot …". */
  what: string;
}

/** In the place of a form that the server would refuse. */
export function NotAllowed({ what }: NotAllowedProps) {
  return (
    <EmptyState icon={<IconLock size={26} />} title="Not with your role">
      Your role in this tenant cannot {what}. An owner of the tenant can change that.
    </EmptyState>
  );
}
