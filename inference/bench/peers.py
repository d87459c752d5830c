"""Ours beside transformers' generate and PEFT's mixed batch: same model, prompts, dtype, threads.

Greedy, a fixed number of new tokens, prompts of one length so that nobody pads. Ours and the peer
take turns within the same minutes, and the best of the repeats counts: a shared machine is slow at
times, never fast. transformers and PEFT are imported here and nowhere else in the room.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from inference.bench.dummy_adapter import write_dummy_adapter
from inference.bench.record import Row
from inference.config import EngineConfig
from inference.engine import Engine
from inference.model_spec import ModelSpec
from inference.request import SamplingParams
from inference.startup import DTYPES

PROMPT_TOKENS = 32
# (requests, distinct adapters)
CASES = ((1, 0), (1, 1), (8, 0), (8, 1), (8, 8))
NUM_ADAPTERS = 8
# Of the adapters beyond those given: loud enough that a wrong one is seen in the tokens.
RANK, B_STD = 16, 0.02


def measure_peers(options: argparse.Namespace) -> Iterator[Row]:
    """Table D, a row a case: tokens/s of ours and of the peer, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        paths = sorted(p for p in options.adapters_path.iterdir() if p.is_dir())[:NUM_ADAPTERS]
        spec = ModelSpec.load(options.model_path)
        paths += [
            write_dummy_adapter(Path(folder) / f"random-{number}", spec, RANK, number, B_STD)
            for number in range(NUM_ADAPTERS - len(paths))
        ]
        yield from _measure(options, paths)


def _measure(options: argparse.Namespace, paths: list[Path]) -> Iterator[Row]:
    dtype = "float32" if options.dtype == "auto" else options.dtype
    torch.set_num_threads(options.threads)
    engine = _engine(options, dtype, paths)
    peer = _Peer(options.model_path, paths, DTYPES[dtype])
    for num_requests, num_adapters in CASES:
        names = [p.name for p in paths[:num_adapters]]
        rows = [names[i % num_adapters] if names else None for i in range(num_requests)]
        yield _race(options, engine, peer, rows) | {
            "what": f"{num_requests} requests, {num_adapters} adapters",
            "peer_is": "transformers generate" if not names else "PEFT generate, adapter_names",
            "dtype": dtype,
            "threads": options.threads,
            "output_tokens": options.output_tokens,
        }


def _race(
    options: argparse.Namespace, engine: Engine, peer: "_Peer", rows: list[str | None]
) -> Row:
    """rows: each request's adapter, None for the base."""
    prompts = [_prompt(i, engine.spec.vocab_size) for i in range(len(rows))]
    params = SamplingParams(options.output_tokens, temperature=0.0, ignore_eos=True)
    runs = {
        "ours": lambda: engine.generate(prompts, params, rows),
        "peer": lambda: peer.generate(prompts, options.output_tokens, rows),
    }
    best, tokens = _take_turns(runs, options.repeats)
    speeds = {name: len(rows) * options.output_tokens / best[name] for name in runs}
    return {
        "table": "D",
        "ours": round(speeds["ours"], 1),
        "peer": round(speeds["peer"], 1),
        "ratio": round(speeds["ours"] / speeds["peer"], 2),
        "unit": "tok/s",
        "same_tokens": tokens["ours"] == tokens["peer"],
    }


def _take_turns(
    runs: dict[str, Callable[[], list[list[int]]]], repeats: int
) -> tuple[dict[str, float], dict[str, list[list[int]]]]:
    """The best time of each in s, and what each answered. One round more warms up."""
    best = dict.fromkeys(runs, float("inf"))
    tokens: dict[str, list[list[int]]] = {}
    for round_number in range(repeats + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            tokens[name] = run()
            if round_number:
                best[name] = min(best[name], time.perf_counter() - started)
    return best, tokens


def _engine(options: argparse.Namespace, dtype: Any, paths: list[Path]) -> Engine:
    # Without the prefix cache: a repeat must not find its prompt computed.
    config = EngineConfig(
        options.model_path,
        dtype=dtype,
        device="cpu",
        num_threads=options.threads,
        prefix_cache=False,
    )
    engine = Engine(config)
    for path in paths:
        engine.load_adapter(path.name, str(path))
    return engine


def _prompt(number: int, vocab_size: int) -> list[int]:
    return [(number * 7919 + i * i * 31 + 100) % vocab_size for i in range(PROMPT_TOKENS)]


class _Peer:
    """transformers for the base, PEFT with adapter_names where a row has an adapter."""

    def __init__(self, model_path: str, paths: list[Path], dtype: torch.dtype) -> None:
        warnings.simplefilter("ignore")
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        load: Any = AutoModelForCausalLM.from_pretrained
        self._base = load(model_path, dtype=dtype).eval()
        # A model of its own: wrapping would slow the base's rows.
        wrap: Any = PeftModel.from_pretrained
        wrapped = wrap(load(model_path, dtype=dtype), paths[0], adapter_name=paths[0].name)
        for path in paths[1:]:
            wrapped.load_adapter(path, adapter_name=path.name)
        self._wrapped: Any = wrapped.eval()

    @torch.inference_mode()
    def generate(
        self, prompts: list[list[int]], num_tokens: int, rows: list[str | None]
    ) -> list[list[int]]:
        ids = torch.tensor(prompts)
        options: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": num_tokens,
            "min_new_tokens": num_tokens,
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": 0,
        }
        if any(rows):
            names = [name or "__base__" for name in rows]
            out = self._wrapped.generate(**options, adapter_names=names)
        else:
            out = self._base.generate(**options)
        found: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return found
