"""What commands share: their arguments, and the house they ask."""

from typing import Annotated

import typer

from grafthouse import account
from grafthouse.client import House

AsJson = Annotated[bool, typer.Option("--json", help="The house's answer as JSON, on stdout.")]
Name = Annotated[str, typer.Argument(metavar="ADAPTER")]
Number = Annotated[int, typer.Argument(metavar="VERSION", min=1)]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Rows at most.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait at most.", min=1.0)]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the outcome.")]


def open_house() -> House:
    return House(account.current())
