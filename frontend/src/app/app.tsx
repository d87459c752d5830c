import { localStorageColorSchemeManager, MantineProvider } from "@mantine/core";
import { Notifications } from "@mantine/notifications";
import { type QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { useState } from "react";
import { SESSION_KEY } from "@/features/session/api/get-session";
import { createQueryClient } from "./query-client";
import { createAppRouter } from "./router";
import { theme } from "./theme";

const colorSchemeManager = localStorageColorSchemeManager({ key: "grafthouse-color-scheme" });

function start() {
  const queryClient: QueryClient = createQueryClient(() => {
    void queryClient.invalidateQueries({ queryKey: SESSION_KEY, refetchType: "none" });
    // Every guarded route asks for the session again and sends who has none to the sign-in page.
    void router.invalidate();
  });
  const router = createAppRouter(queryClient);
  return { queryClient, router };
}

export function App() {
  const [{ queryClient, router }] = useState(start);
  return (
    <MantineProvider
      theme={theme}
      defaultColorScheme="auto"
      colorSchemeManager={colorSchemeManager}
    >
      <Notifications position="bottom-right" limit={4} />
      <QueryClientProvider client={queryClient}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </MantineProvider>
  );
}
