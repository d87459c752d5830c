import type { QueryClient } from "@tanstack/react-query";
import {
  createRootRouteWithContext,
  createRoute,
  createRouter,
  lazyRouteComponent,
  notFound,
  Outlet,
  redirect,
  type RouterHistory,
} from "@tanstack/react-router";
import { sessionQuery } from "@/features/session/api/get-session";
import { tenantsQuery } from "@/features/tenants/api/list-tenants";
import { tenantQuery } from "@/lib/tenant";
import { AdapterPage, NewVersionPage } from "./routes/adapter";
import { AdaptersPage, NewAdapterPage } from "./routes/adapters";
import { AuditPage } from "./routes/audit";
import { FleetPage } from "./routes/fleet";
import { HomePage } from "./routes/home";
import { KeysPage } from "./routes/keys";
import { PlaygroundPage } from "./routes/playground";
import { SignInPage } from "./routes/sign-in";
import { NotFoundPage, RouteError } from "./route-states";
import * as search from "./search";
import { Shell } from "./shell";

interface RouterContext {
  queryClient: QueryClient;
}

const rootRoute = createRootRouteWithContext<RouterContext>()({ component: Outlet });

const signInRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/sign-in",
  validateSearch: search.signIn,
  component: SignInPage,
});

const signedInRoute = createRoute({
  getParentRoute: () => rootRoute,
  id: "signed-in",
  beforeLoad: async ({ context: { queryClient }, location }) => {
    const session = await queryClient.query(sessionQuery());
    if (!session.user) throw redirect({ to: "/sign-in", search: { next: location.href } });
    return { session, user: session.user };
  },
  component: Shell,
});

const homeRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: "/",
  loader: async ({ context: { queryClient } }) => {
    const tenants = await queryClient.query(tenantsQuery());
    const first = tenants.results[0];
    if (first) throw redirect({ to: "/t/$tenant/adapters", params: { tenant: first.slug } });
  },
  component: HomePage,
});

const fleetRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: "/fleet",
  beforeLoad: ({ context }) => {
    if (!context.user.is_operator) throw notFound();
  },
  component: FleetPage,
});

const tenantRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: "/t/$tenant",
  loader: async ({ context: { queryClient }, params }) => {
    const tenants = await queryClient.query(tenantsQuery());
    if (!tenants.results.some(({ slug }) => slug === params.tenant)) throw notFound();
    // Pages show from the start what the caller may do, and take nothing back.
    await queryClient.query(tenantQuery(params.tenant));
  },
});

const adaptersRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "adapters",
  validateSearch: search.adapters,
  component: AdaptersPage,
});

const newAdapterRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "adapters/new",
  component: NewAdapterPage,
});

const adapterRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "adapters/$name",
  validateSearch: search.adapter,
  component: AdapterPage,
});

const newVersionRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "adapters/$name/upload",
  component: NewVersionPage,
});

const playgroundRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "playground",
  validateSearch: search.playground,
  component: PlaygroundPage,
});

const keysRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "keys",
  component: KeysPage,
});

const usageRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "usage",
  validateSearch: search.usage,
  // With it comes the chart library, which no other page needs.
  component: lazyRouteComponent(() => import("./routes/usage"), "UsagePage"),
});

const auditRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "audit",
  validateSearch: search.paged,
  component: AuditPage,
});

const routeTree = rootRoute.addChildren([
  signInRoute,
  signedInRoute.addChildren([
    homeRoute,
    fleetRoute,
    tenantRoute.addChildren([
      adaptersRoute,
      newAdapterRoute,
      adapterRoute,
      newVersionRoute,
      playgroundRoute,
      keysRoute,
      usageRoute,
      auditRoute,
    ]),
  ]),
]);

export function createAppRouter(
  queryClient: QueryClient,
  options: { history?: RouterHistory } = {},
) {
  return createRouter({
    routeTree,
    context: { queryClient },
    history: options.history,
    defaultPreload: "intent",
    defaultPreloadStaleTime: 0,
    scrollRestoration: true,
    defaultNotFoundComponent: NotFoundPage,
    defaultErrorComponent: RouteError,
    parseSearch: search.parse,
    stringifySearch: search.stringify,
  });
}

declare module "@tanstack/react-router" {
  interface Register {
    router: ReturnType<typeof createAppRouter>;
  }
}
