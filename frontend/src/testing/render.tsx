import { MantineProvider } from "@mantine/core";
import { Notifications } from "@mantine/notifications";
import { QueryClientProvider } from "@tanstack/react-query";
import { createMemoryHistory, RouterProvider } from "@tanstack/react-router";
import { render } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { startApp } from "@/app/start";
import { theme } from "@/app/theme";

/** The whole application at an address, as a browser would open it. */
export function renderAt(path: string) {
  const { queryClient, router } = startApp(createMemoryHistory({ initialEntries: [path] }));
  render(
    <MantineProvider theme={theme} env="test" withCssVariables={false} withGlobalClasses={false}>
      <Notifications />
      <QueryClientProvider client={queryClient}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  return { user: userEvent.setup({ delay: null, pointerEventsCheck: 0 }), router, queryClient };
}
