"""Which key: login, logout, whoami."""

import sys
from typing import Annotated, Any

import typer

from grafthouse import account, screen
from grafthouse.account import Account
from grafthouse.client import House
from grafthouse.failure import Exit, Failure
from grafthouse.options import AsJson


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


def logout() -> None:
    """Forget the kept key. The key itself stays valid: revoke it in the house."""
    screen.say("Signed out." if account.forget() else "There was nothing to forget.")


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
