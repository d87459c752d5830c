"""The commands. Each asks the house, shows the answer, and ends with a status that scripts know."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from grafthouse import account, screen, upload
from grafthouse.account import Account
from grafthouse.client import House, adapter_path
from grafthouse.failure import Exit, Failure
from grafthouse.parts import Moved

EPILOG = (
    "Status: 0 done, 1 the house failed, 2 wrong usage, 3 not allowed, 4 not found, "
    "5 refused (a rejected upload, a failed activation), 6 unreachable, 7 timed out."
)
app = typer.Typer(
    name="grafthouse",
    help="Adapters from a terminal: upload, activate, roll back, watch.",
    epilog=EPILOG,
    no_args_is_help=True,
    # A traceback with local variables would print keys.
    pretty_exceptions_enable=False,
)
adapters_app = typer.Typer(help="The tenant's adapters.", no_args_is_help=True)
app.add_typer(adapters_app, name="adapters")

AsJson = Annotated[bool, typer.Option("--json", help="The house's answer as JSON, on stdout.")]
Name = Annotated[str, typer.Argument(metavar="ADAPTER")]
Number = Annotated[int, typer.Argument(metavar="VERSION", min=1)]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Rows at most.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait at most.", min=1.0)]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the outcome.")]

CHECKED = frozenset({"ready", "active", "rejected", "failed"})
SETTLED = frozenset({"active", "ready", "failed"})
FOLLOW_INTERVAL_S = 1.0


def main() -> None:
    try:
        app()
    except Failure as failure:
        screen.fail(str(failure))
        sys.exit(int(failure.code))


def open_house() -> House:
    return House(account.current())


@app.command()
def login(
    url: Annotated[str, typer.Option(help="Where the house is.")] = account.DEFAULT_URL,
    key_stdin: Annotated[
        bool, typer.Option("--key-stdin", help="Read the key from stdin.")
    ] = False,
) -> None:
    """Try a key and keep it for the commands to come; it is asked for, and never an argument."""
    raw = sys.stdin.readline() if key_stdin else typer.prompt("API key", hide_input=True, err=True)
    mine = Account(account.checked_url(url), raw.strip())
    if not mine.api_key.isascii() or not mine.api_key:
        raise Failure("That is no key: expected gh-…", Exit.USAGE)
    with House(mine) as house:
        name = house.tenant["name"]
    path = account.keep(mine)
    screen.say(f"Signed in to {name} at {mine.url}. The key is in {path}, for you alone.")


@app.command()
def logout() -> None:
    """Forget the kept key. The key itself stays valid: revoke it in the house."""
    screen.say("Signed out." if account.forget() else "There was nothing to forget.")


@app.command()
def whoami(as_json: AsJson = False) -> None:
    """Whose key it is, and what it may do."""
    mine = account.current()
    with House(mine) as house:
        found: dict[str, Any] = {"url": house.url, **house.tenant}
        try:
            found["permissions"] = house.ask("GET", "")["permissions"]
        except Failure as failure:
            # A key for inference alone may not read its tenant; it is known all the same.
            if failure.code != Exit.NOT_ALLOWED:
                raise
    found["key"] = account.masked(mine.api_key)
    if as_json:
        return screen.show_json(found)
    shown = {**found, "permissions": ", ".join(found.get("permissions", ["inference only"]))}
    screen.pairs(list(shown.items()))


@adapters_app.command("list")
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


@app.command()
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


@app.command("upload")
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
    with screen.err.status(f"activating {name}@{number}"):
        version = upload.wait_for(house, name, number, SETTLED, timeout_s)
    if version["state"] == "ready":
        # Another activation, begun later, has taken this one's place.
        raise Failure(f"{name}@{number} was overtaken by another activation.", Exit.REFUSED)
    return version


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
def chat(
    model: Annotated[str, typer.Argument(help="An adapter, adapter@version, or the base.")],
    message: Annotated[str, typer.Argument(help="- reads stdin.")],
    system: Annotated[str, typer.Option(help="A system prompt.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1)] = 256,
    temperature: Annotated[float | None, typer.Option(min=0.0, max=2.0)] = None,
    as_json: AsJson = False,
) -> None:
    """One question, its answer as it is made."""
    text = sys.stdin.read() if message == "-" else message
    turns = [{"role": "system", "content": system}] if system else []
    body: dict[str, Any] = {
        "model": model,
        "messages": [*turns, {"role": "user", "content": text}],
        "max_tokens": max_tokens,
        **({} if temperature is None else {"temperature": temperature}),
    }
    with open_house() as house:
        if as_json:
            return screen.show_json(house.call("POST", "/v1/chat/completions", json=body))
        options = {"stream": True, "stream_options": {"include_usage": True}}
        write_answer(house.stream("/v1/chat/completions", body | options))


def write_answer(chunks: Iterator[dict[str, Any]]) -> None:
    served = ""
    for chunk in chunks:
        served = chunk["model"]
        for choice in chunk["choices"]:
            sys.stdout.write(screen.plain(choice["delta"].get("content") or ""))
            sys.stdout.flush()
        if used := chunk.get("usage"):
            prompt, completion = used["prompt_tokens"], used["completion_tokens"]
            sys.stdout.write("\n")
            sys.stdout.flush()
            screen.note(f"{served}: {prompt} prompt tokens, {completion} completion tokens")
