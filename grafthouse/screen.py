"""What a person sees. Text of the house's is data: control characters and markup never act."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

out = Console(highlight=False, markup=False)
err = Console(stderr=True, highlight=False, markup=False)

STATE_STYLES = {"active": "green", "ready": "cyan", "rejected": "red", "failed": "red"}


def plain(value: object) -> str:
    """As it may stand on a terminal: what would move the cursor or ring is shown, not done."""
    text = "" if value is None else str(value)
    return "".join(
        char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in text
    )


def say(text: str, style: str = "") -> None:
    out.print(Text(plain(text), style), soft_wrap=True)


def note(text: str) -> None:
    """Beside the answer: on stderr, so that a pipe gets the answer only."""
    err.print(Text(plain(text), "dim"), soft_wrap=True)


def fail(message: str) -> None:
    line = " ".join(plain(message).split())
    err.print(Text.assemble(("grafthouse: ", "bold red"), line), soft_wrap=True)


def show_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2 if sys.stdout.isatty() else None) + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns whose name starts with > stand right."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        grid.add_column(column.lstrip(">"), justify="right" if column[0] == ">" else "left")
    for row in rows:
        grid.add_row(*(Text(plain(cell), STATE_STYLES.get(str(cell), "")) for cell in row))
    # A pipe gets whole lines: nothing is cut to the width of a terminal that is not there.
    out.print(grid, soft_wrap=not out.is_terminal, width=None if out.is_terminal else 10_000)


def progress() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    return Progress(*columns, console=err, disable=not err.is_terminal)


def pairs(rows: Sequence[tuple[str, object]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        out.print(Text(f"{name:{width}}  ", "bold").append(plain(value)), soft_wrap=True)


def size(num_bytes: int | None) -> str:
    return "" if num_bytes is None else decimal(num_bytes)


def minute(moment: str | None) -> str:
    """An ISO moment, to the second, in UTC."""
    return "" if not moment else moment[:19].replace("T", " ")


def show_report(name: str, version: dict[str, Any]) -> None:
    """A version and all that was found wrong or worth knowing."""
    state = version["state"]
    head = Text.assemble((f"{plain(name)}@{version['number']}", "bold"), " is ")
    out.print(head.append(state, STATE_STYLES.get(state, "")))
    report = version.get("report") or {}
    for kind, style in (("problems", "red"), ("warnings", "yellow")):
        for one in report.get(kind, []):
            _show_finding(one, kind[:-1], style)
    if version.get("error"):
        say(version["error"], "red")
    facts = report.get("facts") or {}
    if facts.get("num_tensors"):
        targets = ", ".join(facts.get("targets", []))
        shape = f"rank {facts.get('rank')}, {facts['num_tensors']} tensors"
        say(f"  {shape}, {targets}, {size(version.get('size_bytes'))}", "dim")
    if version.get("digest"):
        say(f"  {version['digest']}", "dim")


def _show_finding(one: dict[str, Any], kind: str, style: str) -> None:
    line = Text.assemble((f"  {kind} ", style), (plain(one["code"]), "bold"), " ")
    line.append(plain(one["message"]))
    held = [f"{word}: {plain(one[word])}" for word in ("expected", "found") if one.get(word)]
    out.print(line.append(f" ({'; '.join(held)})" if held else ""), soft_wrap=True)
