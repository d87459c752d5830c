"""How likely the model finds a prompt's own tokens: a step's normed stream → log-probabilities.

The row of one token scores the next. The logits of all rows of a long prompt would not fit beside
the model: they are made, normalised and dropped slice by slice, and numbers only are kept.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch

from inference.models.llama import LlamaModel
from inference.plan import Work
from inference.request import TokenLogprobs
from inference.sequence import Sequence
from inference.transfer import Arrival, to_device, to_host

# Of one slice's logits in fp32; their logarithms take as much again.
SLICE_BYTES = 32 << 20


@dataclass(frozen=True)
class Span:
    """Rows of a step, from row on, that score sequence's prompt behind these positions."""

    sequence: Sequence
    row: int
    positions: range


@dataclass(frozen=True)
class Scored:
    """What one step found out of one prompt. first: the position behind which the first of the
    scored tokens stands. logprobs None: the logits are not finite.
    """

    sequence: Sequence
    first: int
    logprobs: tuple[TokenLogprobs, ...] | None


@dataclass(frozen=True)
class Scoring:
    """On its way to the host: values [R, 1 + K], the prompt's token first; ids [R, K]."""

    spans: tuple[Span, ...]
    values: Arrival
    ids: Arrival

    def collect(self) -> list[Scored]:
        """Waits."""
        values, ids = self.values.wait(), self.ids.wait()
        sizes = [len(span.positions) for span in self.spans]
        parts = zip(self.spans, torch.split(values, sizes), torch.split(ids, sizes), strict=True)
        return [_scored(*part) for part in parts]


def spans(work: Rows[Work]) -> tuple[Span, ...]:
    """The rows of a step that somebody asked to be scored by."""
    found, row = [], 0
    for item in work:
        if positions := item.sequence.unscored(item.start, item.end):
            found.append(Span(item.sequence, row + positions.start - item.start, positions))
        row += item.num_tokens
    return tuple(found)


def score(model: LlamaModel, x: torch.Tensor, wanted: tuple[Span, ...]) -> Scoring:
    """x [T, H]: the step's normed stream. Not waited for."""
    rows = [row for span in wanted for row in range(span.row, span.row + len(span.positions))]
    tokens = [span.sequence.tokens[position + 1] for span in wanted for position in span.positions]
    num_top = min(max(map(_num_top, wanted)), model.spec.vocab_size)
    index = to_device([rows, tokens], x.device)
    height = max(SLICE_BYTES // (4 * model.spec.vocab_size), 1)
    pieces = [
        _slice(model.logits(x, piece[0]), piece[1], num_top)
        for piece in torch.split(index, height, dim=1)
    ]
    values, ids = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return Scoring(wanted, to_host(values), to_host(ids))


def _slice(
    logits: torch.Tensor, tokens: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, 1 + num_top] logarithms, the token's own first; [R, num_top] ids of the likeliest."""
    values = torch.log_softmax(logits.float(), dim=-1)
    top, ids = values.topk(num_top)
    return torch.cat((values.gather(1, tokens[:, None]), top), dim=1), ids


def _num_top(span: Span) -> int:
    return span.sequence.request.sampling.num_prompt_logprobs or 0


def _scored(span: Span, values: torch.Tensor, ids: torch.Tensor) -> Scored:
    num_top, first = _num_top(span), span.positions.start
    if not bool(torch.isfinite(values).all()):
        return Scored(span.sequence, first, None)
    top = zip(ids[:, :num_top].tolist(), values[:, 1 : 1 + num_top].tolist(), strict=True)
    logprobs = tuple(
        TokenLogprobs(own, tuple(zip(*pair, strict=True)))
        for own, pair in zip(values[:, 0].tolist(), top, strict=True)
    )
    return Scored(span.sequence, first, logprobs)
