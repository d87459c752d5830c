"""Steps with prompts as captured graphs of what lies between two calls of attention.

Op by op such a step costs the host more than the device while it has few tokens. Attention alone
depends on how the tokens are spread over sequences: it is launched by itself, the rest replayed,
padded up to a bucket of tokens. What fills a bucket up has no place in the cache and no adapter.
"""

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from inference.batch import SequenceBatch, TokenBatch
from inference.lora import LoraPool, LoraStep
from inference.models.llama import Angles, LlamaModel
from inference.token_rows import TokenRows
from inference.transfer import to_device

logger = logging.getLogger(__name__)

# Beyond, the device takes longer than launching op by op.
MAX_TOKENS = 4096
TOKEN, POSITION, PLACE, SLOT, SOURCE = range(5)
PADDING = (0, 0, -1, -1, -1)


def token_buckets(max_tokens: int) -> tuple[int, ...]:
    """Ascending to max_tokens, each at most a quarter above the one before from 128 on."""
    sizes = (*range(32, 256, 32), *range(256, 1024, 64), *range(1024, MAX_TOKENS, 256))
    return (*(size for size in sizes if size < max_tokens), max_tokens)


@dataclass
class Parts:
    """What the parts of one bucket hand on. graphs: one a part, none while not captured."""

    bucket: int
    has_lora: bool
    tokens: TokenBatch | None = None
    angles: Angles | None = None
    graphs: list[torch.cuda.CUDAGraph] = field(default_factory=list)


class PartGraphs:
    """kv [L, 2, NB, BS, HKV, D]; last_tokens: DecodeInputs'. Only the loop's thread calls."""

    def __init__(
        self,
        model: LlamaModel,
        kv: torch.Tensor,
        lora: LoraPool,
        max_tokens: int,
        last_tokens: torch.Tensor,
    ) -> None:
        self._model, self._kv, self._lora, self._last_tokens = model, kv, lora, last_tokens
        self._buckets = token_buckets(min(max_tokens, MAX_TOKENS))
        spec, rows = model.spec, self._buckets[-1]
        self._ints = torch.zeros(len(PADDING), rows, dtype=torch.int64, device=kv.device)
        self._residual = kv.new_zeros(rows, spec.hidden_size)
        self._q = kv.new_zeros(rows, spec.num_heads, spec.head_dim)
        self._out = kv.new_zeros(rows, spec.num_heads * spec.head_dim)
        self._normed = kv.new_zeros(rows, spec.hidden_size)
        self._captured: dict[tuple[int, bool], Parts] = {}

    @property
    def max_tokens(self) -> int:
        return self._buckets[-1]

    @torch.inference_mode()
    def capture(self) -> None:
        """Every part of every bucket, the largest first: the smaller ones use its memory."""
        started_s = time.perf_counter()
        memory = torch.cuda.graph_pool_handle()
        for bucket in reversed(self._buckets):
            self._fill(TokenRows(), bucket)
            for has_lora in (True, False):
                parts = Parts(bucket, has_lora)
                for number in range(self._num_parts):
                    self._capture(number, parts, memory)
                self._captured[bucket, has_lora] = parts
        seconds = time.perf_counter() - started_s
        logger.info("captured parts of %d buckets in %.1f s", len(self._buckets), seconds)

    @torch.inference_mode()
    def run(
        self, rows: TokenRows, sequences: SequenceBatch
    ) -> tuple[torch.Tensor, LoraStep | None]:
        """The normed stream [T, H], which the next step overwrites, and the step's LoRA. Without
        capture() the same parts are launched op by op.
        """
        num_tokens = len(rows.token_ids)
        bucket = next(size for size in self._buckets if size >= num_tokens)
        has_lora = max(rows.slots) >= 0
        self._fill(rows, bucket)
        parts = self._captured.get((bucket, has_lora)) or Parts(bucket, has_lora)
        for number in range(self._num_parts):
            if parts.graphs:
                parts.graphs[number].replay()
            else:
                self._run_part(number, parts)
            if number < self._model.spec.num_layers:
                out = self._model.attend(number, self._q[:num_tokens], sequences, self._kv)
                self._out[:num_tokens].copy_(out)
        assert parts.tokens is not None
        return self._normed[:num_tokens], parts.tokens.lora

    @property
    def _num_parts(self) -> int:
        """One ends at each layer's attention, one behind the last."""
        return self._model.spec.num_layers + 1

    def _fill(self, rows: TokenRows, bucket: int) -> None:
        columns = (rows.token_ids, rows.positions, rows.places, rows.slots, rows.sources)
        missing = bucket - len(rows.token_ids)
        padded = [
            column + [value] * missing for column, value in zip(columns, PADDING, strict=True)
        ]
        self._ints[:, :bucket].copy_(to_device(padded, self._ints.device))

    def _capture(self, number: int, parts: Parts, memory: Any) -> None:
        # Once before: what is kept by shape is made.
        self._run_part(number, parts)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            self._run_part(number, parts)
        # What a capture makes holds nothing until it is replayed, and the next part reads it.
        graph.replay()
        parts.graphs.append(graph)

    def _run_part(self, number: int, parts: Parts) -> None:
        """Capturable: reads and writes the same tensors whenever it runs."""
        bucket, num_layers = parts.bucket, self._model.spec.num_layers
        if number == 0:
            parts.tokens = self._tokens(bucket, parts.has_lora)
            residual, parts.angles = self._model.embed(parts.tokens)
            self._residual[:bucket].copy_(residual)
        assert parts.tokens is not None and parts.angles is not None
        out = self._out[:bucket] if number else None
        context = (self._residual[:bucket], parts.angles, parts.tokens, self._kv)
        result = self._model.queries(number, out, *context)
        (self._q if number < num_layers else self._normed)[:bucket].copy_(result)

    def _tokens(self, bucket: int, has_lora: bool) -> TokenBatch:
        ints = self._ints[:, :bucket]
        drawn = self._last_tokens[ints[SOURCE].clamp(min=0)]
        token_ids = torch.where(ints[SOURCE] >= 0, drawn, ints[TOKEN])
        lora = self._lora.step_of_any(ints[SLOT].int()) if has_lora else None
        return TokenBatch(token_ids, ints[POSITION], ints[PLACE], lora)
