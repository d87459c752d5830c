"""What the figures are held against. Tables B and C are of one H200, D of two CPU threads."""

from dataclasses import dataclass

from inference.bench.record import Row


@dataclass(frozen=True)
class Bar:
    """key: a line's `what`, or "REQUESTS/ADAPTERS" in table B. is_floor: more is better.

    must closes the matter, goal is where it is to go.
    """

    table: str
    key: str
    must: float
    goal: float
    is_floor: bool = False

    def meets(self, value: float, bound: float) -> bool:
        return value >= bound if self.is_floor else value <= bound

    def missed_percent(self, value: float) -> float:
        """How far from must, of must."""
        return abs(value - self.must) / self.must * 100


def key_of(row: Row) -> str:
    if row["table"] == "B":
        return f"{row['requests']}/{row['adapters']}"
    return str(row["what"])


def value_of(row: Row) -> float:
    return float(row[{"B": "step_ms", "C": "value", "D": "ratio"}[row["table"]]])


def _steps() -> list[Bar]:
    rows = (
        ("64/0", 6.2, 5.3),
        ("64/1", 6.7, 5.6),
        ("64/16", 7.0, 5.9),
        ("64/64", 8.3, 7.0),
        ("256/0", 11.8, 9.5),
        ("256/16", 13.8, 10.7),
        ("256/64", 15.0, 11.8),
        ("256/256", 22.0, 17.0),
    )
    return [Bar("B", *row) for row in rows]


def _rates() -> list[Bar]:
    rows = ((64, 0, 8400, 10000), (64, 64, 6300, 7600), (256, 0, 14400, 17500))
    return [
        Bar("C", f"output, {requests} requests, {adapters} adapters", must, goal, is_floor=True)
        for requests, adapters, must, goal in (*rows, (256, 100, 10000, 12500))
    ]


def _first_tokens() -> list[Bar]:
    what = "time to first token with LoRA / without, 64 requests, {} adapters"
    return [Bar("C", what.format(number), 1.25, 1.10) for number in (1, 16, 64)]


BARS = (
    *_steps(),
    *_rates(),
    *_first_tokens(),
    Bar("C", "adapter load, disk cold", 80, 40),
    Bar("C", "adapter load, page cache", 25, 12),
    Bar("C", "adapter load, host pool", 4, 2.5),
    Bar("C", "step time while adapters load from host / without", 1.05, 1.0),
    Bar("C", "step time while adapters load from disk / without", 1.05, 1.0),
    Bar("C", "1,000 registered, Zipf 1.0, 256 concurrent / all resident", 0.8, 0.92, is_floor=True),
    Bar("C", "adapters = what fits + 1, 8 concurrent: time to first token p50", 2.0, 1.1),
    Bar("C", "adapters = what fits + 1, 32 concurrent: time to first token p50", 2.0, 1.1),
    Bar("C", "without adapters, LoRA engine / LoRA-off, 64 requests", 0.99, 1.0, is_floor=True),
    Bar("C", "without adapters, LoRA engine / LoRA-off, 256 requests", 0.99, 1.0, is_floor=True),
    Bar("C", "HTTP server / offline, 256 streams", 0.95, 0.98, is_floor=True),
    Bar("D", "1 requests, 0 adapters", 1.0, 1.0, is_floor=True),
    Bar("D", "8 requests, 8 adapters", 3.0, 3.0, is_floor=True),
)
