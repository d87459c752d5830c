import {
  IconBuilding,
  IconChartBar,
  IconHistory,
  IconKey,
  IconLeaf,
  IconMessages,
  IconServer2,
} from "@tabler/icons-react";
import { Link } from "@tanstack/react-router";
import classes from "./shell.module.css";

interface NavProps {
  tenant: string | undefined;
  isOperator: boolean;
  onNavigate: () => void;
}

const SECTIONS = [
  {
    title: "Build",
    items: [
      { to: "/t/$tenant/adapters", label: "Adapters", Icon: IconLeaf },
      { to: "/t/$tenant/playground", label: "Playground", Icon: IconMessages },
    ],
  },
  {
    title: "Run",
    items: [
      { to: "/t/$tenant/keys", label: "API keys", Icon: IconKey },
      { to: "/t/$tenant/usage", label: "Usage", Icon: IconChartBar },
      { to: "/t/$tenant/audit", label: "Audit log", Icon: IconHistory },
    ],
  },
] as const;

export function Nav({ tenant, isOperator, onNavigate }: NavProps) {
  return (
    <nav aria-label="Main">
      {tenant !== undefined &&
        SECTIONS.map(({ title, items }) => (
          <div key={title} role="group" aria-label={title}>
            <div className={classes.section}>{title}</div>
            {items.map(({ to, label, Icon }) => (
              <Link
                key={to}
                to={to}
                params={{ tenant }}
                className={classes.item}
                onClick={onNavigate}
              >
                <Icon size={17} stroke={1.7} aria-hidden />
                {label}
              </Link>
            ))}
          </div>
        ))}
      {isOperator && (
        <div role="group" aria-label="Operate">
          <div className={classes.section}>Operate</div>
          <Link to="/fleet" className={classes.item} onClick={onNavigate}>
            <IconServer2 size={17} stroke={1.7} aria-hidden />
            Fleet
          </Link>
          {/* Pages of the server's own. */}
          <a href="/admin/" className={classes.item}>
            <IconBuilding size={17} stroke={1.7} aria-hidden />
            Tenants and plans
          </a>
        </div>
      )}
    </nav>
  );
}
