import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "@/lib/api";
import { fleetQuery } from "./get-fleet";

const NUM_SHOWN = 20;

/** The last acts of operators. Stale with the fleet, of whose key it begins. */
export function fleetEventsQuery() {
  return queryOptions({
    queryKey: [...fleetQuery().queryKey, "events"],
    queryFn: () =>
      unwrap(api.GET("/api/fleet/events/", { params: { query: { limit: NUM_SHOWN } } })),
  });
}
