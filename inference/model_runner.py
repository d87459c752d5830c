"""Moves bytes: builds the tensors of a forward from a plan, launches it, samples.

Steps that only decode go through captured graphs where there are some; the others are launched op
by op. On CUDA nothing waits for the device but collect(): the next step may be launched on tokens
that only the device knows.
"""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import accumulate

import torch

from inference.batch import ForwardBatch, SequenceBatch, TokenBatch
from inference.cpu_threads import threads_of_step
from inference.decode_graphs import DecodeGraphs
from inference.lora import LoraPool, LoraStep
from inference.models.llama import LlamaModel
from inference.plan import Plan, Work
from inference.prompt_graphs import PromptGraphs
from inference.prompt_scores import Scored, Scoring, score, spans
from inference.sampler import Drawn, Sampled, Sampler
from inference.token_rows import known_or_drawn, padded_tables, token_rows
from inference.transfer import to_device

GRAPH, PROMPT_GRAPH = "graph", "prompt graph"


@dataclass(frozen=True)
class Forward:
    """Launched. logits [samples, V], of the works that sample; scoring: of prompts. path: GRAPH,
    PROMPT_GRAPH, or why by neither.
    """

    plan: Plan
    logits: torch.Tensor
    lora_ms: Callable[[], float | None]
    path: str
    started_s: float
    scoring: Scoring | None = None


@dataclass(frozen=True)
class Flight:
    """A step whose tokens are being drawn. works: those that still counted when they were."""

    forward: Forward
    works: tuple[Work, ...]
    drawn: Drawn

    def launched(self) -> Iterator[tuple[Work, int | None]]:
        """Works that are on their way, each with the place of the token that it draws among the
        device's last tokens, None for a chunk. Those that were held back are left out.
        """
        places = {row: place for place, row in enumerate(self.drawn.rows)}
        row = 0
        for work in self.works:
            if not work.samples:
                yield work, None
                continue
            if row in places:
                yield work, places[row]
            row += 1


@dataclass(frozen=True)
class Outcome:
    """results: works with what they sampled, None for a chunk; scored: of prompts. Times in ms;
    step_ms: since the start, or since the outcome before it when that came later.
    """

    plan: Plan
    results: tuple[tuple[Work, Sampled | None], ...]
    lora_ms: float | None
    step_ms: float
    path: str
    scored: tuple[Scored, ...] = ()


class ModelRunner:
    """kv [L, 2, NB, BS, HKV, D]; last_tokens [max_num_seqs] int64: those drawn last, for graphs to
    read. Only the loop's thread calls.
    """

    def __init__(
        self,
        model: LlamaModel,
        kv: torch.Tensor,
        lora: LoraPool,
        sampler: Sampler,
        graphs: DecodeGraphs | None,
        last_tokens: torch.Tensor,
        prompt_graphs: PromptGraphs | None = None,
    ) -> None:
        self.model = model
        self.kv = kv
        self.lora = lora
        self.last_tokens = last_tokens
        self.sampler = sampler
        self._graphs = graphs
        self._prompt_graphs = prompt_graphs
        self._block_size = kv.shape[3]
        self._ended_s = 0.0

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Forward:
        """The forward of a plan with work. The copies that it needs were started."""
        started_s = time.perf_counter()
        if plan.new_blocks and self.kv.device.type == "cpu":
            # The reference multiplies what it masks: a former owner's NaN would stay one.
            self.kv[:, :, list(plan.new_blocks)] = 0
        with threads_of_step(sum(item.num_tokens for item in plan.work), self.kv.device):
            return self._launch(plan, started_s)

    def _launch(self, plan: Plan, started_s: float) -> Forward:
        wanted = spans(plan.work)
        path, scoring = self._path(plan.work, bool(wanted)), None
        if path == GRAPH:
            logits, lora = self._decode(plan.work)
        else:
            x, lora = self._stream(plan.work, path)
            logits = self.model.logits(x, self._logits_rows(plan.work))
            scoring = score(self.model, x, wanted) if wanted else None
        lora_ms = (lambda: 0.0) if lora is None else self.lora.measure(lora)
        return Forward(plan, logits, lora_ms, path, started_s, scoring)

    @torch.inference_mode()
    def sample(self, forward: Forward) -> Flight:
        """Draws the tokens of works that still count, once all former tokens are known."""
        sampling = [work for work in forward.plan.work if work.samples]
        rows = [row for row, work in enumerate(sampling) if work.is_live]
        logits = forward.logits
        if len(rows) < len(sampling):
            logits = logits[self._ints(rows)]
        drawn = self.sampler.launch(logits, [sampling[row].sequence for row in rows])
        num_drawn = drawn.tokens.shape[0]
        self.last_tokens[:num_drawn].copy_(drawn.tokens)
        works = tuple(work for work in forward.plan.work if work.is_live)
        return Flight(forward, works, drawn)

    def collect(self, flight: Flight) -> Outcome:
        """Waits for the step, also where it draws nothing."""
        sampled = iter(flight.drawn.collect())
        results = tuple((w, next(sampled) if w.samples else None) for w in flight.works)
        forward, now_s = flight.forward, time.perf_counter()
        step_ms = (now_s - max(forward.started_s, self._ended_s)) * 1e3
        self._ended_s = now_s
        scored = () if forward.scoring is None else tuple(forward.scoring.collect())
        return Outcome(forward.plan, results, forward.lora_ms(), step_ms, forward.path, scored)

    def _path(self, work: Rows[Work], is_scored: bool) -> str:
        """GRAPH or PROMPT_GRAPH where one serves it; else what stands against them. A decode graph
        has no place for a prompt's token that is to be scored, be it alone.
        """
        if is_scored or any(item.num_tokens > 1 for item in work):
            graphs = self._prompt_graphs
            return PROMPT_GRAPH if graphs is not None and graphs.serves(work) else "prefill"
        if self._graphs is None:
            return "no graphs"
        return GRAPH if len(work) <= self._graphs.max_rows else "too many rows"

    def _decode(self, work: Rows[Work]) -> tuple[torch.Tensor, LoraStep | None]:
        """Logits of the works that sample; the LoRA of the step."""
        assert self._graphs is not None
        logits, lora = self._graphs.run(work)
        if all(item.samples for item in work):
            return logits, lora
        rows = [row for row, item in enumerate(work) if item.samples]
        return logits[self._ints(rows)], lora

    def _stream(self, work: Rows[Work], path: str) -> tuple[torch.Tensor, LoraStep | None]:
        """The normed stream [T, H], for readers that are launched before the next step."""
        if path == PROMPT_GRAPH:
            assert self._prompt_graphs is not None
            return self._prompt_graphs.run(work)
        batch = self.batch(work)
        return self.model.stream(batch.tokens, batch.sequences, self.kv), batch.tokens.lora

    def batch(self, work: Rows[Work]) -> ForwardBatch:
        """The tensors of a step that is launched op by op."""
        rows = token_rows(work, self._block_size)
        sources = self._ints(rows.sources)
        token_ids = self._ints(rows.token_ids)
        if max(rows.sources) >= 0:
            token_ids = known_or_drawn(token_ids, sources, self.last_tokens)
        lora = self.lora.step(self._ints(rows.slots, torch.int32), set(rows.slots) - {-1})
        places = self._ints(rows.places)
        tokens = TokenBatch(token_ids, self._ints(rows.positions), places, lora)
        return ForwardBatch(tokens, self._sequences(work), self._logits_rows(work))

    def _sequences(self, work: Rows[Work]) -> SequenceBatch:
        ends = [item.end for item in work]
        num_decodes = sum(item.num_tokens == 1 for item in work)
        return SequenceBatch(
            block_tables=self._ints(padded_tables(work), torch.int32),
            query_start=self._ints([0, *accumulate(i.num_tokens for i in work)], torch.int32),
            context_lens=self._ints(ends, torch.int32),
            num_decodes=num_decodes,
            max_decode_context=max(ends[:num_decodes], default=0),
            prefills=tuple((item.num_tokens, item.end) for item in work[num_decodes:]),
        )

    def _logits_rows(self, work: Rows[Work]) -> torch.Tensor:
        """The last token of each work that samples."""
        ends = accumulate(item.num_tokens for item in work)
        return self._ints([end - 1 for item, end in zip(work, ends, strict=True) if item.samples])

    def _ints(self, values: object, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return to_device(values, self.kv.device, dtype)
