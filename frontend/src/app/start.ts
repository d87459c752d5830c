import type { QueryClient } from "@tanstack/react-query";
import type { RouterHistory } from "@tanstack/react-router";
import { SESSION_KEY } from "@/features/session/api/get-session";
import { createQueryClient } from "./query-client";
import { createAppRouter } from "./router";

/** The two long-lived objects of the application. history: the browser's, unless a test gives another. */
export function startApp(history?: RouterHistory) {
  const queryClient: QueryClient = createQueryClient(() => {
    void queryClient.invalidateQueries({ queryKey: SESSION_KEY, refetchType: "none" });
    // Every guarded route asks for the session again and sends who has none to the sign-in page.
    void router.invalidate();
  });
  const router = createAppRouter(queryClient, { history });
  return { queryClient, router };
}
