"""What a name leads to: a canary beside the active version, and aliases."""

from typing import Annotated, Any

import typer

from grafthouse import screen
from grafthouse.client import House, adapter_path, alias_path
from grafthouse.failure import Exit, Failure
from grafthouse.options import AsJson, Limit, Name, Target, Timeout, open_house, parsed
from grafthouse.versions import await_active, show_outcome

FIGURES = ("num_requests", "num_errors", "prompt_tokens", "completion_tokens")
AliasName = Annotated[str, typer.Argument(metavar="ALIAS")]


def canary(
    name: Name,
    number: Annotated[int | None, typer.Argument(metavar="VERSION", min=1)] = None,
    percent: Annotated[int | None, typer.Argument(min=1, max=99, help="Of end users.")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="The active version serves all.")] = False,
    promote: Annotated[bool, typer.Option("--promote", help="Activate it, and wait.")] = False,
    timeout: Timeout = 600.0,
    as_json: AsJson = False,
) -> None:
    """A second version for a part of the end users; with the name alone, how both fare."""
    require_one_wish(number, percent, stop, promote)
    path = adapter_path(name, "canary")
    with open_house() as house:
        if stop:
            return stop_canary(house, name, as_json)
        if promote:
            return promote_canary(house, name, timeout, as_json)
        body = {"version": number, "percent": percent}
        found = house.ask("PUT", path, json=body) if number else house.ask("GET", path)
    show_canary(name, found, as_json)


def require_one_wish(number: int | None, percent: int | None, stop: bool, promote: bool) -> None:
    """Raises Failure: which version with which share, or an option, never both."""
    if (number is None) != (percent is None):
        raise Failure("A canary is a VERSION and its PERCENT of end users.", Exit.USAGE)
    if (number is not None) + stop + promote > 1:
        raise Failure("Expected VERSION PERCENT, or --stop, or --promote alone.", Exit.USAGE)


def stop_canary(house: House, name: str, as_json: bool) -> None:
    house.ask("DELETE", adapter_path(name, "canary"))
    if as_json:
        return screen.show_json({"adapter": name, "canary": None})
    screen.note(f"{name} has no canary any more.")


def promote_canary(house: House, name: str, timeout_s: float, as_json: bool) -> None:
    path = adapter_path(name, "canary")
    # Named, so that another canary, begun meanwhile, is not what gets promoted.
    number = house.ask("GET", path)["version"]
    house.ask("PUT", path, json={"version": number, "percent": 100})
    show_outcome(name, await_active(house, name, number, timeout_s), as_json)


def show_canary(name: str, found: dict[str, Any], as_json: bool) -> None:
    """Both versions' figures; REFUSED when no replica could hold it."""
    if as_json:
        screen.show_json(found)
    else:
        share = f"{found['percent']} % of end users"
        screen.say(f"{name}@{found['version']} is a canary for {share}, {found['state']}")
        if found["error"]:
            screen.say(found["error"], "red")
        sides = [side for side in (found["active_figures"], found["canary_figures"]) if side]
        cells = [(side["number"], *(side[figure] for figure in FIGURES)) for side in sides]
        screen.table([">VERSION", ">REQUESTS", ">ERRORS", ">PROMPT", ">COMPLETION"], cells)
    if found["state"] == "failed":
        raise typer.Exit(Exit.REFUSED)


def alias(name: AliasName, target: Target, as_json: AsJson = False) -> None:
    """Make a second name, or point it elsewhere; with @VERSION it stays at that one."""
    adapter, number = parsed(target)
    body = {"adapter": adapter, "version": number}
    with open_house() as house:
        if is_alias(house, name):
            found = house.ask("PUT", alias_path(name), json=body)
        else:
            found = house.ask("POST", "aliases/", json={"name": name, **body})
    if as_json:
        return screen.show_json(found)
    screen.say(f"{found['name']} is {pointed(found)}")


def is_alias(house: House, name: str) -> bool:
    try:
        house.ask("GET", alias_path(name))
    except Failure as failure:
        if failure.code != Exit.NOT_FOUND:
            raise
        return False
    return True


def pointed(row: dict[str, Any]) -> str:
    return f"{row['adapter']}@{row['version']}" if row["version"] else str(row["adapter"])


def aliases(limit: Limit = 1000, as_json: AsJson = False) -> None:
    """Every second name, and where it leads."""
    with open_house() as house:
        rows = house.rows("aliases/", limit)
    if as_json:
        return screen.show_json(rows)
    cells = [(row["name"], pointed(row), screen.minute(row["created_at"])) for row in rows]
    screen.table(["ALIAS", "LEADS TO", "MADE (UTC)"], cells)


def unalias(name: AliasName, as_json: AsJson = False) -> None:
    """Take a second name away; what it led to stays."""
    with open_house() as house:
        house.ask("DELETE", alias_path(name))
    if as_json:
        return screen.show_json({"name": name, "adapter": None, "version": None})
    screen.note(f"{name} is no alias any more.")
