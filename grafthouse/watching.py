"""What happened, and what was used."""

import json
import sys
import time
from typing import Annotated, Any

import typer

from grafthouse import screen
from grafthouse.options import AsJson, Limit, open_house

FOLLOW_INTERVAL_S = 1.0


def logs(
    limit: Limit = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it happens.")] = False,
    as_json: AsJson = False,
) -> None:
    """Who did what: the tenant's audit rows, oldest first. JSON is one row a line."""
    with open_house() as house:
        rows = house.rows("audit/", limit)[::-1]
        show_audit(rows, as_json)
        while follow:
            time.sleep(FOLLOW_INTERVAL_S)
            fresh = newer(house.rows("audit/", 100)[::-1], rows[-1:])
            show_audit(fresh, as_json)
            rows = fresh or rows


def newer(page: list[dict[str, Any]], last: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What came after the last row seen: rows of one moment are told apart by their content."""
    if last and last[0] in page:
        return page[page.index(last[0]) + 1 :]
    return page


def show_audit(rows: list[dict[str, Any]], as_json: bool) -> None:
    for row in rows:
        if as_json:
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
            continue
        changes = {**(row["before"] or {}), **(row["after"] or {})}
        told = " ".join(f"{key}={value}" for key, value in changes.items() if value is not None)
        when, who = screen.minute(row["at"]), row["actor"]
        screen.say(f"{when}  {who}  {row['action']}  {row['target']}  {told[:200]}")


def usage(
    since: Annotated[str, typer.Option("--from", help="2026-01-31; default: this month.")] = "",
    until: Annotated[str, typer.Option("--to", help="Not included.")] = "",
    as_json: AsJson = False,
) -> None:
    """Requests, tokens and cost by adapter."""
    query = {name: value for name, value in (("from", since), ("to", until)) if value}
    with open_house() as house:
        found = house.ask("GET", "usage/summary/", params=query)
    if as_json:
        return screen.show_json(found)
    rows = [*found["by_adapter"], {"adapter": "total", **found["total"]}]
    names = ("num_requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")
    cells = [(row["adapter"] or "(base)", *(row[name] for name in names)) for row in rows]
    screen.table(["ADAPTER", ">REQUESTS", ">PROMPT", ">CACHED", ">COMPLETION", ">COST"], cells)
