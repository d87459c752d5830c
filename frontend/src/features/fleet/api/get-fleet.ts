import { queryOptions } from "@tanstack/react-query";
import { FLEET_POLL_MS } from "@/config/app";
import { api, unwrap } from "@/lib/api";

/** Load moves without events, so it is asked for while the page is in view. */
export function fleetQuery() {
  return queryOptions({
    queryKey: ["@operator", "fleet"],
    queryFn: () => unwrap(api.GET("/api/fleet/")),
    refetchInterval: FLEET_POLL_MS,
  });
}
