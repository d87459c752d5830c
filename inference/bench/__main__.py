"""`python -m inference.bench`: the engine's figures, as JSON lines.

WHAT, in this order whatever the order given; `device` is all from bursts to served:
  peers      (default) the CPU beside transformers' generate and PEFT's mixed batch: table D
  fairness   who waits how long while another tenant floods, on a simulated clock
  bursts     decode steps, output rates, times to first token: tables B and C
  arrivals   what a prompt that arrives costs those that run
  off        what requests without adapters pay for an engine with adapters
  loads      an adapter from disk, page cache and host memory
  stalls     steps of other requests while adapters load
  fit        one adapter more than fits
  zipf       a thousand registered adapters, of which a part fits
  served     the HTTP server under 256 streams, against offline

All from bursts on run on the GPU if there is one, on one dummy model and shared engines. A line is
written as soon as it is measured; --budget ends a run between two of them.

`python -m inference.bench report FILE ...` prints such lines beside what is asked of them.
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from inference.bench.arrivals import measure_arrivals
from inference.bench.bursts import BURSTS, burst, measure_bursts
from inference.bench.fairness import measure_fairness
from inference.bench.fit import measure_fit
from inference.bench.floors import KERNEL_RESULTS, layer_gains_us
from inference.bench.loads import measure_loads
from inference.bench.off import measure_off
from inference.bench.peers import measure_peers
from inference.bench.record import Row, record
from inference.bench.report import read, report
from inference.bench.served import measure_served
from inference.bench.shapes import SHAPES, spec_of
from inference.bench.stage import Stage
from inference.bench.stalls import measure_stalls
from inference.bench.zipf import measure_zipf
from inference.engine_process import LOG_FORMAT
from inference.model_spec import ModelSpec

log = logging.getLogger("inference.bench")

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[2]
DEMO_MODEL = ROOT / "var" / "models" / "smollm2-135m-instruct"
DEMO_ADAPTERS = ROOT / "demo" / "adapters"

# In the order in which they run: "off" wants an engine without adapters, "served" ends them all.
ON_DEVICE: dict[str, Callable[[Stage], Iterator[Row]]] = {
    "arrivals": measure_arrivals,
    "off": measure_off,
    "loads": measure_loads,
    "stalls": measure_stalls,
    "fit": measure_fit,
    "zipf": measure_zipf,
    "served": measure_served,
}
DEVICE = ("bursts", *ON_DEVICE)


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["report"]:
        return _report(arguments[1:])
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    parser = _parser()
    options = parser.parse_args(arguments)
    wanted, commit = _wanted(options.what), options.commit
    if "peers" in wanted:
        _check_folders(parser, options)
        record(options.results, measure_peers(options), commit)
    if "fairness" in wanted:
        record(options.results, measure_fairness(options.results / "fairness.svg"), commit)
    if wanted & set(DEVICE):
        with tempfile.TemporaryDirectory() as folder:
            stage = _stage(options, options.scratch or Path(folder))
            failed: list[str] = []
            record(options.results, _on_device(stage, wanted, options, failed), commit)
            if failed:
                return 1
    return 0


def _wanted(what: str | list[str]) -> set[str]:
    asked = [what] if isinstance(what, str) else what
    return {name for one in asked for name in (DEVICE if one == "device" else [one])}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m inference.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices = ("peers", "fairness", "device", *DEVICE)
    parser.add_argument("what", nargs="*", choices=choices, metavar="WHAT", default="peers")
    add = parser.add_argument
    add("--budget", type=float, default=float("inf"), metavar="S", help="seconds; default: no end")
    add("--results", type=Path, default=RESULTS, metavar="DIR", help="default: here, in results/")
    add("--commit", help="of the tree, where it was copied without its history")
    _add_model_flags(parser)
    _add_load_flags(parser)
    return parser


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--shape", choices=sorted(SHAPES), help="a dummy model without files; default: the 8B")
    add("--model-path", help="a Hugging Face directory instead; peers: default the demo's")
    add("--load-format", choices=("auto", "dummy"), default="dummy", help="of --model-path")
    add("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    graphs_help = "of steps with prompts too, as the server's flag"
    switch = argparse.BooleanOptionalAction
    add("--prompt-graphs", action=switch, default=True, help=graphs_help)
    scratch_help = "where model and adapter files are written and found; default: deleted after"
    add("--scratch", type=Path, metavar="DIR", help=scratch_help)
    add("--threads", type=int, default=2, help="of the CPU")
    adapters_help = "peers: a folder of adapter folders; default: the demo's"
    add("--adapters-path", type=Path, default=DEMO_ADAPTERS, help=adapters_help)


def _add_load_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    bursts_help = "REQUESTS/ADAPTERS of each burst; default: all of tables B and C"
    add("--bursts", type=burst, nargs="+", default=BURSTS, help=bursts_help)
    add("--requests", type=int, default=256, help="that run at once")
    add("--rank", type=int, default=16)
    add("--prompt-tokens", type=int, default=256)
    add("--output-tokens", type=int, help="default: 256; peers: 48")
    add("--repeats", type=int, help="default: 1; peers: 3")


def _stage(options: argparse.Namespace, scratch: Path) -> Stage:
    shape = options.shape or (None if options.model_path else "llama-3.1-8b")
    return Stage(
        spec=spec_of(shape) if shape else ModelSpec.load(options.model_path),
        scratch=scratch,
        max_requests=max(options.requests, *(each.num_requests for each in options.bursts)),
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens or 256,
        rank=options.rank,
        repeats=options.repeats or 1,
        until_s=time.monotonic() + options.budget,
        shape=shape,
        model_path=None if shape else options.model_path,
        config={
            "dtype": options.dtype,
            "load_format": "dummy" if shape else options.load_format,
            "num_threads": options.threads,
            "prompt_graphs": options.prompt_graphs,
        },
    )


def _on_device(
    stage: Stage, wanted: set[str], options: argparse.Namespace, failed: list[str]
) -> Iterator[Row]:
    """What fails is logged and noted in failed: the others' lines are worth having."""
    gains_us = layer_gains_us(sorted(KERNEL_RESULTS.glob("*.jsonl")))
    measures = {"bursts": lambda _: measure_bursts(stage, options.bursts, gains_us)} | ON_DEVICE
    for name in (name for name in DEVICE if name in wanted):
        if stage.left_s <= 0:
            log.warning("no time left for %s", name)
            continue
        try:
            yield from measures[name](stage)
        except Exception:
            log.exception("%s failed", name)
            failed.append(name)
        yield from stage.take_setup()


def _check_folders(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    options.model_path = options.model_path or str(DEMO_MODEL)
    options.output_tokens = options.output_tokens or 48
    options.repeats = options.repeats or 3
    for path in (Path(options.model_path), options.adapters_path):
        if not path.is_dir():
            parser.error(f"{path} is not there: name a model and adapters, or make the demo's")


def _report(arguments: Sequence[str]) -> int:
    paths = [Path(one) for one in arguments] or sorted(RESULTS.glob("*.jsonl"))
    try:
        print("\n".join(report(read(paths))))
    except (OSError, ValueError) as error:
        print(f"python -m inference.bench report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
