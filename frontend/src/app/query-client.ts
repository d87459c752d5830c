import { MutationCache, QueryCache, QueryClient } from "@tanstack/react-query";
import { ApiError } from "@/lib/errors";

function isSignedOut(error: unknown): boolean {
  return error instanceof ApiError && error.status === 401;
}

const MAX_RETRIES = 2;

/** Retries only what may pass by itself: no answer at all, or a failure of the server. */
function shouldRetry(numFailures: number, error: unknown): boolean {
  const mayPass = error instanceof ApiError && (error.status === 0 || error.status >= 500);
  return mayPass && numFailures < MAX_RETRIES;
}

export function createQueryClient(onSignedOut: () => void): QueryClient {
  const onError = (error: unknown) => {
    if (isSignedOut(error)) onSignedOut();
  };
  return new QueryClient({
    queryCache: new QueryCache({ onError }),
    mutationCache: new MutationCache({
      // A refused sign-in is the form's to tell.
      onError: (error, _variables, _context, mutation) => {
        if (mutation.meta?.isSignIn !== true) onError(error);
      },
    }),
    defaultOptions: { queries: { retry: shouldRetry, staleTime: 5_000 } },
  });
}
