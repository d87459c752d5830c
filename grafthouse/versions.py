"""Adapters and their versions: what there is, a new one, which one serves, which one no more."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from grafthouse import screen, upload
from grafthouse.client import House, adapter_path
from grafthouse.failure import Exit, Failure
from grafthouse.options import (
    AsJson,
    Limit,
    Name,
    NoWait,
    Number,
    Target,
    Timeout,
    open_house,
    parsed,
)
from grafthouse.parts import Moved

CHECKED = frozenset({"ready", "active", "rejected", "failed"})
SETTLED = frozenset({"active", "ready", "failed"})


def list_adapters(limit: Limit = 1000, as_json: AsJson = False) -> None:
    """Every adapter, and the version that serves."""
    with open_house() as house:
        rows = house.rows("adapters/", limit)
    if as_json:
        return screen.show_json(rows)
    cells = [
        (
            row["name"],
            (row["active_version"] or {}).get("number", "-"),
            row["num_versions"],
            screen.minute(row["updated_at"]),
            row["description"],
        )
        for row in rows
    ]
    screen.table(["NAME", ">ACTIVE", ">VERSIONS", "CHANGED (UTC)", "DESCRIPTION"], cells)


def versions(name: Name, limit: Limit = 50, as_json: AsJson = False) -> None:
    """An adapter's versions, newest first."""
    with open_house() as house:
        rows = house.rows(adapter_path(name, "versions"), limit)
    if as_json:
        return screen.show_json(rows)
    cells = [
        (
            row["number"],
            row["state"],
            "yes" if row["is_served"] else "",
            row["rank"] or "",
            screen.size(row["size_bytes"]),
            screen.minute(row["created_at"]),
            (row["digest"] or "")[:12],
        )
        for row in rows
    ]
    columns = [">VERSION", "STATE", "SERVED", ">RANK", ">SIZE", "UPLOADED (UTC)", "DIGEST"]
    screen.table(columns, cells)


def upload_version(
    path: Annotated[Path, typer.Argument(help="A folder as PEFT saves it, or an archive of it.")],
    name: Annotated[str, typer.Option("--adapter", "-a", help="Default: the folder's name.")] = "",
    and_activate: Annotated[bool, typer.Option("--activate", help="Once it is ready.")] = False,
    no_wait: NoWait = False,
    timeout: Timeout = 600.0,
    as_json: AsJson = False,
) -> None:
    """Upload a version, wait for the checks, and show every reason if it is rejected."""
    if no_wait and and_activate:
        raise Failure("--activate waits for the checks: leave --no-wait out.", Exit.USAGE)
    name = name or upload.default_name(path)
    files = upload.files_of(path)
    with open_house() as house:
        with sending(name, files) as moved:
            version = upload.send(house, name, files, moved)
        if not no_wait:
            with screen.err.status(f"checking {name}@{version['number']}"):
                version = upload.wait_for(house, name, version["number"], CHECKED, timeout)
        if and_activate and version["state"] == "ready":
            version = begin(house, name, version["number"], timeout)
    show_outcome(name, version, as_json)


@contextmanager
def sending(name: str, files: dict[str, Path]) -> Iterator[Moved]:
    """A bar of all bytes; on a terminal only."""
    total = sum(path.stat().st_size for path in files.values())
    with screen.progress() as bar:
        task = bar.add_task(screen.plain(name), total=total)
        yield lambda num_bytes: bar.advance(task, num_bytes)


def show_outcome(name: str, version: dict[str, Any], as_json: bool) -> None:
    """The version; REFUSED when it is not what was asked for."""
    if as_json:
        screen.show_json(version)
    else:
        screen.show_report(name, version)
    if version["state"] in ("rejected", "failed"):
        raise typer.Exit(Exit.REFUSED)


def begin(house: House, name: str, number: int, timeout_s: float) -> dict[str, Any]:
    house.ask("POST", adapter_path(name, "versions", number, "activate"))
    return await_active(house, name, number, timeout_s)


def await_active(house: House, name: str, number: int, timeout_s: float) -> dict[str, Any]:
    with screen.err.status(f"activating {name}@{number}"):
        version = upload.wait_for(house, name, number, SETTLED, timeout_s)
    if version["state"] == "ready":
        # Another activation, begun later, has taken this one's place.
        raise Failure(f"{name}@{number} was overtaken by another activation.", Exit.REFUSED)
    return version


def activate(
    name: Name,
    number: Number,
    no_wait: NoWait = False,
    timeout: Timeout = 600.0,
    as_json: AsJson = False,
) -> None:
    """Make a version the one that serves, once its replicas hold it."""
    with open_house() as house:
        if no_wait:
            version = house.ask("POST", adapter_path(name, "versions", number, "activate"))
        else:
            version = begin(house, name, number, timeout)
    show_outcome(name, version, as_json)


def rollback(name: Name, timeout: Timeout = 600.0, as_json: AsJson = False) -> None:
    """Activate the version that served before the active one."""
    with open_house() as house:
        rows = house.rows(adapter_path(name, "versions"), 10_000)
        number = former(name, rows)
        version = begin(house, name, number, timeout)
    show_outcome(name, version, as_json)


def former(name: str, rows: list[dict[str, Any]]) -> int:
    """By when each was last active: rolling back twice leads back to where one was."""
    earlier = [row for row in rows if row["state"] == "ready" and row["activated_at"]]
    if not earlier:
        raise Failure(f"{name} has no version that was active before.", Exit.NOT_FOUND)
    return int(max(earlier, key=lambda row: row["activated_at"])["number"])


def retire(target: Target, as_json: AsJson = False) -> None:
    """Serve a version, or an adapter with all its versions, no more; activating undoes it."""
    name, number = parsed(target)
    with open_house() as house:
        if number is not None:
            version = house.ask("POST", adapter_path(name, "versions", number, "retire"))
            return show_outcome(name, version, as_json)
        adapter = house.ask("POST", adapter_path(name, "retire"))
    if as_json:
        return screen.show_json(adapter)
    screen.say(f"{name} is retired, with all its versions.")
