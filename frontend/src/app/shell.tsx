import { AppShell, Burger, Group } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Outlet, useParams, useRouter } from "@tanstack/react-router";
import { Logo } from "@/components/logo";
import { TextLink } from "@/components/link";
import { UserMenu } from "@/features/session/components/user-menu";
import { tenantsQuery } from "@/features/tenants/api/list-tenants";
import { TenantSwitcher } from "@/features/tenants/components/tenant-switcher";
import { ColorSchemeToggle } from "./color-scheme-toggle";
import { LiveStatus } from "./live-status";
import { Nav } from "./nav";
import classes from "./shell.module.css";

const route = getRouteApi("/signed-in");

function Header({ tenant }: { tenant: string | undefined }) {
  const router = useRouter();
  const { session, user } = route.useRouteContext();
  const { data: tenants } = useQuery(tenantsQuery());
  const role = session.memberships.find((member) => member.tenant.slug === tenant)?.role;
  return (
    <Group gap="xs" flex={1} wrap="nowrap">
      <TextLink
        to="/"
        c="inherit"
        underline="never"
        visibleFrom="sm"
        mr="md"
        aria-label="Grafthouse"
      >
        <Logo />
      </TextLink>
      <TenantSwitcher
        tenants={tenants?.results ?? []}
        current={tenant}
        onSwitch={(slug) =>
          void router.navigate({ to: "/t/$tenant/adapters", params: { tenant: slug } })
        }
      />
      <Group gap={6} ml="auto" wrap="nowrap">
        {tenant !== undefined && <LiveStatus key={tenant} tenant={tenant} />}
        <ColorSchemeToggle />
        <UserMenu
          user={user}
          role={role}
          onSignedOut={() => void router.navigate({ to: "/sign-in" })}
        />
      </Group>
    </Group>
  );
}

export function Shell() {
  const { tenant } = useParams({ strict: false });
  const { session, user } = route.useRouteContext();
  const [isOpen, { toggle, close }] = useDisclosure();
  // On the fleet page the menu still leads back to a tenant.
  const shown = tenant ?? session.memberships[0]?.tenant.slug;
  return (
    <AppShell
      header={{ height: 56 }}
      navbar={{ width: 208, breakpoint: "sm", collapsed: { mobile: !isOpen } }}
      padding={0}
    >
      <a className="skip-link" href="#main">
        Skip to the content
      </a>
      <AppShell.Header className={classes.header} px="md">
        <Burger opened={isOpen} onClick={toggle} hiddenFrom="sm" size="sm" aria-label="Menu" />
        <Header tenant={tenant} />
      </AppShell.Header>
      <AppShell.Navbar className={classes.navbar} p="sm">
        <Nav tenant={shown} isOperator={user.is_operator} onNavigate={close} />
      </AppShell.Navbar>
      <AppShell.Main id="main" className={classes.main}>
        <div className={classes.page}>
          <Outlet />
        </div>
      </AppShell.Main>
    </AppShell>
  );
}
