"""`python -m gateway.bench report FILE ...`: the lines beside their bars, with a verdict each."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from gateway.bench.bars import BARS, Bar
from gateway.bench.measure import Row

WIDTH = 66


def read(paths: Iterable[Path]) -> list[Row]:
    return [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]


def report(rows: list[Row]) -> Iterator[str]:
    """The last line of each figure counts, so later runs replace earlier ones."""
    newest = {(row["what"], row.get("awake", False)): row for row in rows}
    yield f"  {'':{WIDTH}} {'ours':>10} {'litellm':>10} {'ratio':>8}"
    for (what, is_awake), row in newest.items():
        cells = f"{shown(row['ours']):>10} {shown(row['litellm']):>10} {shown(row['ratio']):>8}"
        verdicts = [verdict(bar, row) for bar in BARS if bar.key == what]
        label = f"{what}, {row['unit']}{', awake' if is_awake else ''}"
        yield f"  {label:{WIDTH}} {cells}  {'; '.join(verdicts)}".rstrip()
    measured = {what for what, _ in newest}
    for key in dict.fromkeys(bar.key for bar in BARS if bar.key not in measured):
        yield f"  {key:{WIDTH}} not measured"


def verdict(bar: Bar, row: Row) -> str:
    asked = f"{bar.field} {'≥' if bar.is_floor else '≤'} {bar.bound:g}"
    value = row[bar.field]
    if value is None:
        return f"{asked}: not measured"
    return f"{asked}: {'met' if bar.is_met(value) else 'MISSED'}"


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.3f}".rstrip("0").rstrip(".")
