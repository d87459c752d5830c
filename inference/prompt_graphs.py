"""Steps with prompts as captured graphs: one a bucket of tokens, with adapters and without.

Op by op such a step costs the host tens of milliseconds, however short the prompt. A graph reads
fixed tensors only, attention's bounds among them: it serves any decodes and up to MAX_CHUNKS chunks
beside them. What fills a bucket up has no place in the cache and no adapter.
"""

import logging
import time
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from inference.batch import AnySequences, TokenBatch
from inference.decode_inputs import DecodeInputs
from inference.lora import LoraPool, LoraStep
from inference.models.llama import LlamaModel
from inference.plan import Work
from inference.token_rows import known_or_drawn, padded_tables, token_rows
from inference.transfer import to_device
from kernels.attention.chunks import MAX_CHUNKS

logger = logging.getLogger(__name__)

# Beyond, the device takes longer than launching op by op.
MAX_TOKENS = 4096
TOKEN, POSITION, PLACE, SLOT, SOURCE = range(5)
PADDING = (0, 0, -1, -1, -1)
START, LENGTH = range(2)


def token_buckets(max_tokens: int) -> tuple[int, ...]:
    """Ascending to max_tokens, each at most a quarter above the one before from 128 on."""
    sizes = [*range(32, 256, 32)]
    for size in (256, 512, 1024, 2048):
        sizes += range(size, 2 * size, size // 4)
    return (*(size for size in sizes if size < max_tokens), max_tokens)


@dataclass(frozen=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    lora: LoraStep | None


class PromptGraphs:
    """kv [L, 2, NB, BS, HKV, D]; last_tokens: DecodeInputs'. Only the loop's thread calls run."""

    def __init__(
        self,
        model: LlamaModel,
        kv: torch.Tensor,
        lora: LoraPool,
        max_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        last_tokens: torch.Tensor,
    ) -> None:
        self._model, self._kv, self._lora, self._last_tokens = model, kv, lora, last_tokens
        self._buckets = token_buckets(min(max_tokens, MAX_TOKENS))
        self._decodes = DecodeInputs(max_num_seqs, max_model_len, kv.shape[3], last_tokens)
        rows, device = self._buckets[-1], kv.device
        self._ints = torch.zeros(len(PADDING), rows, dtype=torch.int64, device=device)
        self._chunks = torch.zeros(2, MAX_CHUNKS + 1, dtype=torch.int32, device=device)
        self._tables = self._decodes.tables.new_zeros(MAX_CHUNKS, self._decodes.tables.shape[1])
        self._normed = kv.new_zeros(rows, model.spec.hidden_size)
        self._captured: dict[tuple[int, bool], Captured] = {}

    def serves(self, work: Rows[Work]) -> bool:
        """Whether the step is small enough."""
        num_chunks = sum(item.num_tokens > 1 for item in work)
        num_tokens = sum(item.num_tokens for item in work)
        return num_chunks <= MAX_CHUNKS and num_tokens <= self._buckets[-1]

    @torch.inference_mode()
    def capture(self) -> None:
        """Every graph, the largest first: the smaller ones use its memory."""
        started_s = time.perf_counter()
        memory = torch.cuda.graph_pool_handle()
        for bucket in reversed(self._buckets):
            self._fill((), bucket)
            for has_lora in (True, False):
                self._captured[bucket, has_lora] = self._capture(bucket, has_lora, memory)
        seconds = time.perf_counter() - started_s
        logger.info("captured %d graphs with prompts in %.1f s", len(self._captured), seconds)

    @torch.inference_mode()
    def run(self, work: Rows[Work]) -> tuple[torch.Tensor, LoraStep | None]:
        """The normed stream [T, H] of a step that it serves, which the next step overwrites, and
        the step's LoRA. Without capture() the same step is launched op by op.
        """
        num_tokens = sum(item.num_tokens for item in work)
        bucket = next(size for size in self._buckets if size >= num_tokens)
        has_lora = self._fill(work, bucket)
        captured = self._captured.get((bucket, has_lora))
        if captured is None:
            return self._normed[:num_tokens], self._launch(bucket, has_lora)
        captured.graph.replay()
        return self._normed[:num_tokens], captured.lora

    def _capture(self, bucket: int, has_lora: bool, memory: Any) -> Captured:
        # Once before: kernels are compiled, and what is kept by shape is made.
        self._launch(bucket, has_lora)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            lora = self._launch(bucket, has_lora)
        return Captured(graph, lora)

    def _fill(self, work: Rows[Work], bucket: int) -> bool:
        """Writes the step, and nothing behind it; whether any token has an adapter."""
        rows = token_rows(work, self._kv.shape[3])
        columns = (rows.token_ids, rows.positions, rows.places, rows.slots, rows.sources)
        missing = bucket - len(rows.token_ids)
        padded = [
            column + [value] * missing for column, value in zip(columns, PADDING, strict=True)
        ]
        self._ints[:, :bucket].copy_(to_device(padded, self._ints.device))
        decodes = [item for item in work if item.num_tokens == 1]
        self._decodes.fill(decodes, self._num_rows(bucket))
        self._fill_chunks(work[len(decodes) :], len(decodes))
        return max(rows.slots, default=-1) >= 0

    def _fill_chunks(self, chunks: Rows[Work], num_decodes: int) -> None:
        starts = [*accumulate((item.num_tokens for item in chunks), initial=num_decodes)]
        missing = MAX_CHUNKS - len(chunks)
        lengths = [item.end for item in chunks] + [0] * (missing + 1)
        ints = to_device(
            [starts + starts[-1:] * missing, lengths], self._chunks.device, torch.int32
        )
        self._chunks.copy_(ints)
        if chunks:
            tables = to_device(padded_tables(chunks), self._tables.device, torch.int32)
            self._tables[: len(chunks), : tables.shape[1]].copy_(tables)

    def _num_rows(self, bucket: int) -> int:
        """Decodes that a step of so many tokens may have."""
        return min(bucket, len(self._decodes.tables))

    def _launch(self, bucket: int, has_lora: bool) -> LoraStep | None:
        """Capturable: reads and writes the same tensors whenever it runs."""
        tokens = self._tokens(bucket, has_lora)
        rows = self._num_rows(bucket)
        chunks = (self._tables, self._chunks[START], self._chunks[LENGTH, :MAX_CHUNKS])
        decodes = (self._decodes.tables[:rows], self._decodes.lengths[:rows])
        x = self._model.stream(tokens, AnySequences(decodes, chunks), self._kv)
        self._normed[:bucket].copy_(x)
        return tokens.lora

    def _tokens(self, bucket: int, has_lora: bool) -> TokenBatch:
        ints = self._ints[:, :bucket]
        token_ids = known_or_drawn(ints[TOKEN], ints[SOURCE], self._last_tokens)
        lora = self._lora.step_of_any(ints[SLOT].int()) if has_lora else None
        return TokenBatch(token_ids, ints[POSITION], ints[PLACE], lora)
