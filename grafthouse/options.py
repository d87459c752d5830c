"""What commands share: their arguments, and the house they ask."""

from typing import Annotated

import typer

from grafthouse import account
from grafthouse.client import House
from grafthouse.failure import Exit, Failure

AsJson = Annotated[bool, typer.Option("--json", help="The house's answer as JSON, on stdout.")]
Name = Annotated[str, typer.Argument(metavar="ADAPTER")]
Number = Annotated[int, typer.Argument(metavar="VERSION", min=1)]
Target = Annotated[str, typer.Argument(metavar="ADAPTER[@VERSION]")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Rows at most.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait at most.", min=1.0)]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the outcome.")]


def open_house() -> House:
    return House(account.current())


def parsed(target: str) -> tuple[str, int | None]:
    """support-bot@3 is its version 3; without a number, the adapter. Raises Failure."""
    name, at, number = target.partition("@")
    is_number = number.isascii() and number.isdecimal() and int(number) > 0
    if not name or (at and not is_number):
        raise Failure(f"{target}: expected ADAPTER or ADAPTER@VERSION.", Exit.USAGE)
    return name, int(number) if at else None
