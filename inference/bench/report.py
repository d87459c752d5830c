"""`python -m inference.bench report FILE ...`: the lines beside their bars, with a verdict each."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from inference.bench.bars import BARS, Bar, key_of, value_of
from inference.bench.record import Row

TITLES = {
    "B": "Decode step, ms",
    "C": "Whole runs",
    "D": "Beside transformers and PEFT on the CPU, ours / theirs",
}
WIDTH = 70


def read(paths: Iterable[Path]) -> list[Row]:
    """All lines, in order. Raises ValueError naming the file and line that is no JSON object."""
    rows: list[Row] = []
    for path in paths:
        for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
            try:
                row = json.loads(text)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise ValueError(f"{path}:{number}: expected a JSON object, got {text[:60]!r}")
            rows.append(row)
    return rows


def report(rows: list[Row]) -> Iterator[str]:
    """The last line of each bar counts, so later runs replace earlier ones."""
    newest = {(row["table"], key_of(row)): row for row in rows if row.get("table") in TITLES}
    for table, title in TITLES.items():
        yield f"Table {table}. {title}"
        head = f"{'must':>9} {'goal':>9}  verdict"
        yield f"  {'':{WIDTH}} {'measured':>9} {head}"
        for bar in (bar for bar in BARS if bar.table == table):
            yield _line(bar, newest.get((table, bar.key)))
        yield ""


def _line(bar: Bar, row: Row | None) -> str:
    bounds = f"{bar.must:>9,g} {bar.goal:>9,g}"
    if row is None:
        return f"  {bar.key:{WIDTH}} {'':>9} {bounds}  not measured"
    value = value_of(row)
    shown = f"{value:>9,.0f}" if value >= 1000 else f"{value:>9.3f}"
    return f"  {bar.key:{WIDTH}} {shown} {bounds}  {_verdict(bar, value)}{_aside(row)}"


def _verdict(bar: Bar, value: float) -> str:
    if bar.meets(value, bar.goal):
        return "goal"
    if bar.meets(value, bar.must):
        return "must"
    return f"MISSED by {bar.missed_percent(value):.1f} %"


def _aside(row: Row) -> str:
    """Of a step: what it could be by its bytes, and by the kernels' table."""
    parts = [
        f"{name.removesuffix('_ms')} {row[name]:g}"
        for name in ("floor_ms", "predicted_ms", "lost_ms")
        if row.get(name) is not None
    ]
    return f"  ({', '.join(parts)})" if parts else ""
