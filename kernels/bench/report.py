"""Tables from result lines: table A with its bars, the grid against the best peer, flatness."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# µs a layer gains at rank 16, by (tokens, distinct adapters): what must be reached, the goal.
BARS = {
    (1, 1): (14, 6),
    (64, 1): (17, 8),
    (64, 16): (26, 18),
    (64, 64): (64, 52),
    (256, 16): (52, 32),
    (256, 64): (100, 70),
    (256, 256): (310, 220),
    (2048, 4): (200, 113),
}
WANTED_RATIO = 1.5
WANTED_BANDWIDTH, WANTED_RATE = 0.8, 0.7
# What makes two lines the same point.
IDENTITY = (
    *("op", "table", "kind", "projection", "tokens", "adapters", "rank", "resident"),
    *("consumer", "batch", "queries", "context", "block_size"),
)
# A gain of less is within the noise of the two medians it is the difference of.
NOISE_US = 0.1

Line = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench report", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="lines of python -m kernels.bench")
    try:
        lines = read(parser.parse_args(argv).files)
    except (OSError, ValueError) as error:
        print(f"kernels.bench report: {error}", file=sys.stderr)
        return 2
    for section in (table_a, grid, flat, determinism, attention, small, folded):
        for row in section(lines):
            print(row)
    return 0


def read(paths: Sequence[str]) -> list[Line]:
    """The lines of all files, in order; of two lines for one point the later counts."""
    found: dict[object, Line] = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for text in file:
                line = json.loads(text)
                found[_key(line)] = line
    return list(found.values())


def _key(line: Line) -> tuple[object, ...]:
    return tuple(line.get(name) for name in IDENTITY)


def table_a(lines: Sequence[Line]) -> Iterator[str]:
    rows = [line for line in lines if line.get("table") == "A"]
    if not rows:
        return
    yield "Table A: µs a layer gains over its base matmuls (rank 16)"
    yield (
        f"{'tokens/adapters':>16} {'base':>8} {'floor':>6} {'gain':>7} {'peer':>7} "
        f"{'of peer':>8} {'must':>5} {'goal':>5}  verdict, by form"
    )
    for line in rows:
        must, goal = BARS.get((line["tokens"], line["adapters"]), (math.nan, math.nan))
        gain, peer = line["gain_us"], line.get("peer_us")
        share = f"{gain / peer:8.2f}" if peer else f"{'-':>8}"
        yield (
            f"{line['tokens']:>11}/{line['adapters']:<4} {line['base_us']:8.1f} "
            f"{line['floor_us']:6.1f} {gain:7.1f} {peer or math.nan:7.1f} {share} {must:5.0f} "
            f"{goal:5.0f}  {_verdict(gain, must, goal)}{_forms(line)}"
        )


def _forms(line: Line) -> str:
    figures = dict(line.get("forms", {}))
    if "net_us" in line:
        figures |= {"over our own base": line["net_us"], "fp8": line["fp8"]["gain_us"]}
    return "".join(f", {name} {us:.1f}" for name, us in figures.items())


def _verdict(gain: float, must: float, goal: float) -> str:
    return "goal" if gain <= goal else "must" if gain <= must else "MISSED" if gain > must else "-"


def grid(lines: Sequence[Line]) -> Iterator[str]:
    rows = [line for line in lines if line.get("table") == "grid" and line.get("peer_us")]
    if not rows:
        return
    for name, ours, peer in (
        ("gain over the faster base, expand folded", "net_us", "peer_us"),
        ("gain over cuBLAS, expand not folded", "gain_us", "peer_us"),
        ("LoRA alone", "alone_us", "peer_alone_us"),
    ):
        yield f"Grid, {name}: {len(rows)} points, how many times faster than the best peer"
        ratios = [(line, _ratio(line[ours], line[peer])) for line in rows]
        yield f"  geometric mean {_mean([r for _, r in ratios]):.2f}"
        yield from _means(ratios)
        slower = [(line, ratio) for line, ratio in ratios if ratio < 1]
        short = sum(ratio < WANTED_RATIO for _, ratio in ratios)
        yield f"  below {WANTED_RATIO}: {short}; slower than the best peer: {len(slower)}"
        for line, ratio in sorted(slower, key=lambda pair: pair[1]):
            yield f"    {_place(line)}: {line[ours]:.2f} against {line[peer]:.2f} ({ratio:.2f})"


def _means(ratios: list[tuple[Line, float]]) -> Iterator[str]:
    for by in ("projection", "rank", "tokens"):
        groups: dict[Any, list[float]] = {}
        for line, ratio in ratios:
            groups.setdefault(line[by], []).append(ratio)
        each = ", ".join(f"{key}: {_mean(values):.2f}" for key, values in groups.items())
        yield f"  by {by}: {each}"


def _ratio(ours: float, peer: float) -> float:
    return max(peer, NOISE_US) / max(ours, NOISE_US)


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _place(line: Line) -> str:
    shape = f"{line['tokens']}/{line['adapters']}"
    return f"{line['projection']} rank {line['rank']} {shape} ({line['peer']})"


def flat(lines: Sequence[Line]) -> Iterator[str]:
    yield from _section(
        [line for line in lines if line.get("table") == "flat"],
        "One adapter in use, by what is resident: µs a layer gains, ratio, plan µs a step",
        lambda line: (
            f"{line['tokens']:>6} tokens, {line['resident']}: {line['gain_us']:.1f}, "
            f"{line['ratio']:.2f}, {line['plan_us']:.1f}"
        ),
    )


def determinism(lines: Sequence[Line]) -> Iterator[str]:
    yield from _section(
        [line for line in lines if line.get("table") == "determinism"],
        "Same bits: repeated, in other company, in another order",
        lambda line: (
            f"{line['tokens']:>6}/{line['adapters']:<4} {line['repeat']}, {line['company']}, "
            f"{line['order']}"
        ),
    )


def attention(lines: Sequence[Line]) -> Iterator[str]:
    rows = [line for line in lines if line.get("op") == "attention"]
    yield from _section(
        [line for line in rows if line.get("kind") == "decode"],
        f"Decode attention: batch × context, µs, share of read bandwidth (≥ {WANTED_BANDWIDTH} "
        "at 64 × 4096)",
        lambda line: (
            f"{line['batch']:>6} × {line['context']:<6} blocks of {line['block_size']:<4} "
            f"{line['us']:9.1f} {line['share_of_read_bandwidth']:6.2f}"
        ),
    )
    yield from _section(
        [line for line in rows if line.get("kind") == "prefill" and line["share_of_library"]],
        f"Prefill attention: batch × queries of context, µs, share of the best library's rate "
        f"(≥ {WANTED_RATE})",
        lambda line: (
            f"{line['batch']:>6} × {line['queries']} of {line['context']:<6} {line['us']:9.1f} "
            f"{line['share_of_library']:6.2f} ({line['library']})"
        ),
    )


def small(lines: Sequence[Line]) -> Iterator[str]:
    yield from _section(
        [line for line in lines if "eager_us" in line],
        "Small ops: µs, in torch calls, share of copy bandwidth",
        lambda line: (
            f"{line['op']:>16} {line['tokens']:>6} tokens {line['us']:8.1f} "
            f"{line['eager_us']:8.1f} {line['share_of_bandwidth']:6.2f}"
        ),
    )


def folded(lines: Sequence[Line]) -> Iterator[str]:
    yield from _section(
        [line for line in lines if line.get("op") == "folded"],
        "Expand and its consumer: µs beyond base matmul and plain consumer, by form",
        lambda line: (
            f"{line['consumer']:>10} rank {line['rank']:<3} "
            f"{line['tokens']:>6}/{line['adapters']:<4} "
            + ", ".join(f"{form.removesuffix('_us')} {us}" for form, us in line["gains"].items())
        ),
    )


def _section(rows: Sequence[Line], title: str, row: Callable[[Line], str]) -> Iterator[str]:
    if rows:
        yield title
        yield from map(row, rows)
