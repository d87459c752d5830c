"""`python -m inference.bench`: ours beside its peers in one run, or decode steps on a GPU.

Without flags: tokens/s on the CPU at 1 and 8 requests over 0, 1 and 3 adapters beside transformers'
generate and PEFT's mixed batch, on the demo's model and adapters. With --shape or --load-format
dummy: bursts of requests on a dummy model, on the GPU if there is one (tables B and C of steps,
rates and times to the first token). `fairness`: who waits how long while another tenant floods.
"""

import argparse
from pathlib import Path

from inference.bench.bursts import burst, measure_bursts
from inference.bench.fairness import measure_fairness
from inference.bench.peers import measure_peers
from inference.bench.record import record
from inference.bench.shapes import SHAPES

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[2]
DEMO_MODEL = ROOT / "var" / "models" / "smollm2-135m-instruct"
DEMO_ADAPTERS = ROOT / "demo" / "adapters"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m inference.bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("fairness",), help="default: tokens/s")
    parser.add_argument("--model-path", help="a Hugging Face directory")
    parser.add_argument(
        "--adapters-path", type=Path, default=DEMO_ADAPTERS, help="a folder of adapter folders"
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), help="a dummy model without files")
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    bursts_help = "REQUESTS/DISTINCT ADAPTERS of each burst"
    bursts = [burst(text) for text in ("64/0", "64/1", "64/16", "64/64")]
    parser.add_argument("--bursts", type=burst, nargs="+", default=bursts, help=bursts_help)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, help="default: 48, in bursts 256")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    is_dummy = options.shape or options.load_format == "dummy"
    options.output_tokens = options.output_tokens or (256 if is_dummy else 48)
    if options.what == "fairness":
        rows = measure_fairness(options.results / "fairness.svg")
        record(options.results / "fairness.jsonl", rows)
    elif is_dummy:
        if not (options.shape or options.model_path):
            parser.error("a dummy model needs --shape or --model-path")
        record(options.results / "bursts.jsonl", measure_bursts(options))
    else:
        options.model_path = options.model_path or str(DEMO_MODEL)
        for path in (Path(options.model_path), options.adapters_path):
            if not path.is_dir():
                parser.error(f"{path} is not there: name a model and adapters, or make the demo's")
        record(options.results / "peers.jsonl", measure_peers(options))


if __name__ == "__main__":
    main()
