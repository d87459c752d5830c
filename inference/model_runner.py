"""Moves bytes: builds the tensors of a forward from a plan, runs it, samples.

Steps that only decode go through captured graphs where there are some; the others are launched op
by op.
"""

import time
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch

from inference.batch import ForwardBatch
from inference.decode_graphs import DecodeGraphs
from inference.lora import LoraPool, LoraStep
from inference.models.llama import LlamaModel
from inference.sampler import Sampled, Sampler
from inference.scheduler import Plan, Work
from inference.transfer import to_device


@dataclass(frozen=True)
class Outcome:
    """sampled: for each work of the plan that samples, in order. Times in ms."""

    sampled: list[Sampled]
    lora_ms: float | None
    step_ms: float


class ModelRunner:
    """kv [L, 2, NB, BS, HKV, D]. Only the loop's thread calls."""

    def __init__(
        self,
        model: LlamaModel,
        kv: torch.Tensor,
        lora: LoraPool,
        sampler: Sampler,
        graphs: DecodeGraphs | None,
    ) -> None:
        self.model = model
        self.kv = kv
        self.lora = lora
        self._sampler = sampler
        self._graphs = graphs
        self._block_size = kv.shape[3]

    @torch.inference_mode()
    def run(self, plan: Plan) -> Outcome:
        """The copies that the plan needs were started."""
        started = time.perf_counter()
        if not plan.work:
            return Outcome([], 0.0, 0.0)
        if plan.new_blocks and self.kv.device.type == "cpu":
            # The reference multiplies what it masks: a former owner's NaN would stay one.
            self.kv[:, :, list(plan.new_blocks)] = 0
        run = self._decode if self._is_decode(plan.work) else self._forward
        logits, lora = run(plan.work)
        sequences = [work.sequence for work in plan.work if work.samples]
        sampled = self._sampler.sample(logits, sequences) if sequences else []
        lora_ms = self.lora.measured_ms(lora) if lora is not None else 0.0
        return Outcome(sampled, lora_ms, (time.perf_counter() - started) * 1e3)

    def _is_decode(self, work: Rows[Work]) -> bool:
        """Whether a captured graph serves it."""
        if self._graphs is None or len(work) > self._graphs.max_rows:
            return False
        return all(item.num_tokens == 1 for item in work)

    def _decode(self, work: Rows[Work]) -> tuple[torch.Tensor, LoraStep | None]:
        """Logits of the works that sample; the LoRA of the step."""
        assert self._graphs is not None
        logits, lora = self._graphs.run(work)
        if all(item.samples for item in work):
            return logits, lora
        rows = [row for row, item in enumerate(work) if item.samples]
        return logits[self._ints(rows)], lora

    def _forward(self, work: Rows[Work]) -> tuple[torch.Tensor, LoraStep | None]:
        batch = self._batch(work)
        return self.model.forward(batch, self.kv), batch.lora

    def _batch(self, work: Rows[Work]) -> ForwardBatch:
        token_ids: list[int] = []
        positions: list[int] = []
        places: list[int] = []
        slots: list[int] = []
        starts = [0]
        rows: list[int] = []
        for item in work:
            sequence, end = item.sequence, item.start + item.num_tokens
            token_ids += sequence.tokens[item.start : end]
            positions += range(item.start, end)
            places += self._places(sequence.blocks, item.start, end)
            slots += [-1 if sequence.slot is None else sequence.slot] * item.num_tokens
            starts.append(len(token_ids))
            if item.samples:
                rows.append(len(token_ids) - 1)
        ends = [item.start + item.num_tokens for item in work]
        num_decodes = sum(item.num_tokens == 1 for item in work)
        return ForwardBatch(
            token_ids=self._ints(token_ids),
            positions=self._ints(positions),
            places=self._ints(places),
            block_tables=self._block_tables(work),
            query_start=self._ints(starts, torch.int32),
            context_lens=self._ints(ends, torch.int32),
            num_decodes=num_decodes,
            max_decode_context=max(ends[:num_decodes], default=0),
            prefills=tuple((i.num_tokens, i.start + i.num_tokens) for i in work[num_decodes:]),
            logits_rows=self._ints(rows),
            lora=self.lora.step(self._ints(slots, torch.int32), {s for s in slots if s >= 0}),
        )

    def _places(self, blocks: list[int], start: int, end: int) -> list[int]:
        size = self._block_size
        return [blocks[p // size] * size + p % size for p in range(start, end)]

    def _block_tables(self, work: Rows[Work]) -> torch.Tensor:
        longest = max(len(item.sequence.blocks) for item in work)
        rows = [b + [0] * (longest - len(b)) for b in (item.sequence.blocks for item in work)]
        return self._ints(rows, torch.int32)

    def _ints(self, values: object, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return to_device(values, self.kv.device, dtype)
