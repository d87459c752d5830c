"""What the figures are held against, on two cores."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Field = Literal["ours", "ratio"]


@dataclass(frozen=True)
class Bar:
    """key: a row's `what`. is_floor: more is better."""

    key: str
    field: Field
    bound: float
    is_floor: bool = False

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.is_floor else value <= self.bound


def _latencies() -> Iterator[Bar]:
    for number in (1, 16, 64):
        for percent in (50, 99):
            yield Bar(f"added latency p{percent}, {number} at once", "ratio", 0.2)


STREAMS = "100 streams of 50 tokens/s"
BARS = (
    *_latencies(),
    Bar("added latency p50, 16 at once", "ours", 2.0),
    Bar("added latency p50, 16 at once of 50 tokens/s", "ours", 2.0),
    Bar("requests/s, 64 at once", "ratio", 8.0, is_floor=True),
    Bar(f"added time to first token p99, {STREAMS}", "ours", 5.0),
    Bar(f"added delay per frame p99, {STREAMS}", "ours", 5.0),
    Bar("2,000 open streams: open at once", "ours", 2000, is_floor=True),
    Bar("2,000 open streams: dropped", "ours", 0),
)
