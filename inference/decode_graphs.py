"""Decode steps as captured graphs: one a bucket of batch size, with adapters and without.

A graph reads fixed tensors only, so it serves any mix of adapters, lengths and blocks: what differs
is written into them before a replay. The rows that fill a bucket up have length 0 and no adapter:
nothing is read or written for them.
"""

import logging
import time
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any

import torch

from inference.decode_inputs import DecodeInputs
from inference.lora import LoraPool, LoraStep
from inference.models.llama import LlamaModel
from inference.plan import Work

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Captured:
    """What a replay leaves: logits [bucket, V], and the step's LoRA."""

    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor
    lora: LoraStep | None


def bucket_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Ascending to max_num_seqs: close together where an empty row costs most."""
    ladder = (1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32))
    sizes = (*ladder, *range(256, max_num_seqs, 64))
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)


class DecodeGraphs:
    """kv [L, 2, NB, BS, HKV, D]; last_tokens: DecodeInputs'. Only the loop's thread calls run."""

    def __init__(
        self,
        model: LlamaModel,
        kv: torch.Tensor,
        lora: LoraPool,
        max_num_seqs: int,
        max_model_len: int,
        last_tokens: torch.Tensor,
    ) -> None:
        self._model, self._kv, self._lora = model, kv, lora
        self._inputs = DecodeInputs(max_num_seqs, max_model_len, kv.shape[3], last_tokens)
        self._buckets = bucket_sizes(max_num_seqs)
        self._captured: dict[tuple[int, bool], Captured] = {}

    @property
    def max_rows(self) -> int:
        return self._buckets[-1]

    @torch.inference_mode()
    def capture(self) -> None:
        """Every graph, the largest first: the smaller ones use its memory. Takes seconds; where
        kernels are not compiled yet, a minute or two.
        """
        started = time.perf_counter()
        self._inputs.fill((), self.max_rows)
        memory = torch.cuda.graph_pool_handle()
        for bucket in reversed(self._buckets):
            for has_lora in (True, False):
                self._captured[bucket, has_lora] = self._capture(bucket, has_lora, memory)
        seconds = time.perf_counter() - started
        logger.info("captured %d decode graphs in %.1f s", len(self._captured), seconds)

    @torch.inference_mode()
    def run(self, work: Rows[Work]) -> tuple[torch.Tensor, LoraStep | None]:
        """One token of each sequence, at most max_rows: logits [B, V], which the next step
        overwrites, and the step's LoRA. Without capture() the same step is launched op by op.
        """
        bucket = next(size for size in self._buckets if size >= len(work))
        has_lora = any(item.sequence.slot is not None for item in work)
        self._inputs.fill(work, bucket)
        captured = self._captured.get((bucket, has_lora))
        if captured is None:
            logits, lora = self._decode(bucket, has_lora)
            return logits[: len(work)], lora
        captured.graph.replay()
        return captured.logits[: len(work)], captured.lora

    def _capture(self, bucket: int, has_lora: bool, memory: Any) -> Captured:
        # Twice before: kernels are compiled, and what is kept by shape is made.
        for _ in range(2):
            _, step = self._decode(bucket, has_lora)
        if step is not None:
            # What its clock launches.
            step.run_first_layer()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            logits, lora = self._decode(bucket, has_lora)
        return Captured(graph, logits, lora)

    def _decode(self, bucket: int, has_lora: bool) -> tuple[torch.Tensor, LoraStep | None]:
        lora = self._lora.step_of_any(self._inputs.slots[:bucket]) if has_lora else None
        return self._model.forward(self._inputs.batch(bucket, lora), self._kv), lora
