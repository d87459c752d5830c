"""The command line of python -m kernels.bench: what may be asked, and what is said of the rest."""

import argparse
from pathlib import Path
from typing import NoReturn

from kernels.bench.backends import LOADER, PEERS
from kernels.bench.cases import RANKS
from kernels.bench.lora import Pairs

OPS = ("lora", "attention", "fused", "folded", "flat", "determinism", "grid")


class Parser(argparse.ArgumentParser):
    """Says a wrong argument in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"kernels.bench: {message}; --help tells more\n")


def parser(description: str | None) -> Parser:
    parser = Parser(prog="python -m kernels.bench", description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    ops = ", ".join(OPS)
    parser.add_argument("ops", nargs="*", type=_op, metavar="OP", help=f"{ops}; default: all")
    peers = "folder of the peers' kernels (k/) and their loader (bench/), timed beside ours"
    parser.add_argument("--peers", type=_peers_dir, metavar="DIR", help=peers)
    names = f"which of them; default: {','.join(PEERS)}"
    parser.add_argument("--backends", type=_names, default=PEERS, metavar="NAMES", help=names)
    results = "append the lines to FILE and print its tables; default: lines on stdout"
    parser.add_argument("--results", metavar="FILE", help=results)
    points = "tokens/adapters of table A and the grid, as 64/16,1/1; default: all"
    parser.add_argument("--points", type=_pairs, metavar="LIST", help=points)
    ranks = "ranks of the grid; default: 8,16,32,64"
    parser.add_argument("--ranks", type=_numbers, default=RANKS, metavar="LIST", help=ranks)
    _add_run_flags(parser)
    return parser


def _add_run_flags(parser: Parser) -> None:
    budget = "the grid starts no point later than so many seconds after its first; "
    budget += "a later call with the same --results goes on"
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="S", help=budget)
    commit = "the commit that the tree was copied from, where git does not know it"
    parser.add_argument("--commit", metavar="HASH", help=commit)
    gate = 'do not run the tests first; the lines then say "gate": false'
    parser.add_argument("--no-gate", dest="gate", action="store_false", help=gate)


def _op(text: str) -> str:
    return _checked(text, text in OPS, f"one of {', '.join(OPS)}")


def _peers_dir(text: str) -> str:
    return _checked(text, (Path(text) / LOADER).is_file(), f"a folder with {LOADER}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    _checked(text, all(part.isdigit() for part in parts), "numbers, as 8,16")
    ranks = tuple(int(part) for part in parts)
    _checked(text, set(ranks) <= set(RANKS), f"some of {RANKS}")
    return ranks


def _pairs(text: str) -> Pairs:
    pairs = [pair.split("/") for pair in text.split(",")]
    right = all(len(p) == 2 and all(n.isdigit() and int(n) for n in p) for p in pairs)
    _checked(text, right, "tokens/adapters, as 64/16,1/1")
    found = tuple((int(tokens), int(adapters)) for tokens, adapters in pairs)
    for tokens, adapters in found:
        _checked(text, adapters <= tokens, "no more adapters than tokens")
    return found


def _checked(text: str, holds: bool, expected: str) -> str:
    if not holds:
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")
    return text
