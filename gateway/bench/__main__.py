"""`python -m gateway.bench`: what our gateway costs beside LiteLLM's proxy, as JSON lines.

Both stand before the same dummy upstream, one process each, keys and limits on. LiteLLM is
installed for the run into the scratch folder; where it cannot be, ours is measured alone.

  answers  added latency of 1, 16 and 64 requests at once, and requests/s
  paced    added latency of 16 requests at once that take 0.16 s each
  streams  what 100 streams of 50 tokens/s wait longer, for the first token and for each frame
  held     2,000 open streams on one web process: dropped ones, and memory

`python -m gateway.bench report FILE ...` prints such lines beside what is asked of them.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from gateway.bench.awake import awake
from gateway.bench.measure import MEASURES, Effort, Row
from gateway.bench.record import record
from gateway.bench.report import read, report
from gateway.bench.stage import CannotBench, stage

RESULTS = Path(__file__).parent / "results"


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        "python -m gateway.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    usual = Effort()
    add("--only", nargs="+", choices=tuple(MEASURES), default=tuple(MEASURES))
    add("--seconds", type=float, default=usual.seconds, help="of a point, at most")
    add("--requests", type=int, default=usual.num_requests, help="of a point, at most")
    add("--streams", type=int, default=usual.num_streams)
    add("--held", type=int, default=usual.num_held)
    switch = argparse.BooleanOptionalAction
    add("--litellm", action=switch, default=True, help="measure it too")
    add("--results", type=Path, default=RESULTS, metavar="DIR", help="default: here, in results/")
    add("--awake", action="store_true", help="keep the cores from sleeping (Linux, as root)")
    add("--commit", help="of the tree, where it was copied without its history")
    scratch_help = "kept, with LiteLLM in it, for the next run; default: deleted after"
    add("--scratch", type=Path, metavar="DIR", help=scratch_help)
    return found


def rows(options: argparse.Namespace, scratch: Path) -> Iterator[Row]:
    effort = Effort(options.seconds, options.requests, options.streams, options.held)
    with awake() if options.awake else nullcontext(), stage(scratch, options.litellm) as running:
        for name in (name for name in MEASURES if name in options.only):
            for row in MEASURES[name](running, effort):
                yield row | {"awake": options.awake}


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["report"]:
        paths = [Path(one) for one in arguments[1:]] or sorted(RESULTS.glob("*.jsonl"))
        print("\n".join(report(read(paths))))
        return 0
    options = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            scratch = (options.scratch or Path(folder)).resolve()
            record(options.results, rows(options, scratch), options.commit)
        except (CannotBench, OSError) as error:
            print(f"python -m gateway.bench: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
