"""On CUDA, before the first request: every kernel that a step may launch op by op, once.

Compiling one takes seconds, in which all streams would stand still; and a step that does not fit
into memory is better found at the start. Which kernel a step takes depends on how many tokens it
has, and on whether a chunk has a long prefix. What is written to the KV cache is wiped.
"""

import logging
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from inference.model_runner import ModelRunner
from inference.plan import Work
from inference.request import GenerateRequest, SamplingParams
from inference.sequence import Sequence

logger = logging.getLogger(__name__)

# Block sizes change behind each (the ops' table.py).
NUM_TOKENS = (1, 16, 32, 64, 128, 256, 512)
# (position of the first token, tokens) of two decodes and a chunk; of a chunk with a long prefix.
MIXED, CUT = ((3, 1), (5, 1), (0, 20)), 4096
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 5, "min_p": 0.1},
    {"temperature": 0.0, "num_logprobs": 3},
    {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.1, "min_tokens": 2},
)


def warm_up(runner: ModelRunner, max_batch_tokens: int, max_model_len: int) -> None:
    """Runs steps of all kinds, base and LoRA. Takes a minute where nothing is compiled yet."""
    started_s = time.perf_counter()
    num_blocks, block_size = runner.kv.shape[2:4]
    for shapes in _steps(max_batch_tokens, max_model_len):
        work = [_work(start, count, num_blocks, block_size) for start, count in shapes]
        logits = _run(runner, work)
    for values in SAMPLING:
        sequence = _sequence((1,), **values)
        sequence.output_counts[1] = 1
        for draws_wide in (False, True):
            sequence.draws_wide = draws_wide
            runner.sampler.launch(logits[:1], [sequence]).collect()
    runner.kv.zero_()
    logger.info("warmed up in %.1f s", time.perf_counter() - started_s)


def _steps(max_batch_tokens: int, max_model_len: int) -> Iterator[list[tuple[int, int]]]:
    """Each a step of (position of the first token, tokens); the last is the largest there is."""
    for wanted in (*(n for n in NUM_TOKENS if n < max_batch_tokens), max_batch_tokens):
        full, rest = divmod(wanted, max_model_len)
        yield [(0, max_model_len)] * full + [(0, rest)] * (rest > 0)
    yield [shape for shape in MIXED if sum(shape) <= max_model_len]
    num_chunk = min(16, max_batch_tokens, max_model_len)
    yield [(min(CUT, max_model_len - num_chunk), num_chunk)]


@torch.inference_mode()
def _run(runner: ModelRunner, work: list[Work]) -> torch.Tensor:
    """The step without adapters, then as one with some that no token uses; the clock's ops."""
    batch = runner.batch(work)
    lora = runner.lora.step_of_any(torch.full_like(batch.tokens.places, -1, dtype=torch.int32))
    runner.model.forward(batch, runner.kv)
    tokens = replace(batch.tokens, lora=lora)
    logits = runner.model.forward(replace(batch, tokens=tokens), runner.kv)
    lora.run_first_layer()
    return logits


def _work(start: int, num_tokens: int, num_blocks: int, block_size: int) -> Work:
    """Over the cache's blocks in turn, as often as need be."""
    sequence = _sequence((0,) * (start + num_tokens), temperature=0.0)
    sequence.num_computed = start
    count = -(-len(sequence.tokens) // block_size)
    sequence.blocks = [1 + number % (num_blocks - 1) for number in range(count)]
    return Work.of(sequence, num_tokens)


def _sequence(tokens: tuple[int, ...], **values: Any) -> Sequence:
    request = GenerateRequest("warm-up", tokens, SamplingParams(1, **values))
    return Sequence(request, lambda _: None, random.Random(0), 0.0)
