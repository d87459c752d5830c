"""From logits to tokens. Each row depends on its own request only, never on neighbours."""

import time
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch

from inference.errors import EngineError, ErrorCode
from inference.request import SamplingParams, TokenLogprobs
from inference.sequence import Sequence
from inference.transfer import to_device

# Most nuclei lie within this many tokens; only the others pay for a full sort.
NUM_CANDIDATES = 256
# How long a step waits for masks that are still being made; without one a row is left out.
MASK_GRACE_S = 0.005


@dataclass(frozen=True)
class Sampled:
    """token_id None: there is none, and error says why; without an error: not yet, its grammar's
    mask is still being made, and the same forward may be run again.
    """

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    error: EngineError | None = None


NOT_FINITE = Sampled(
    None, error=EngineError(ErrorCode.NON_FINITE_LOGITS, "the model's output is not finite")
)


class Sampler:
    """eos_token_ids: forbidden while a sequence is below min_tokens."""

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos_token_ids = eos_token_ids

    def sample(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> list[Sampled]:
        """logits [B, V] of any float dtype, row by row for the sequences."""
        held = _held_back(sequences)
        if not held:
            return self._sample(logits.float(), sequences)
        rows = [row for row in range(len(sequences)) if row not in held]
        found = iter(self._sample(logits[rows].float(), [sequences[row] for row in rows]))
        return [held[row] if row in held else next(found) for row in range(len(sequences))]

    def _sample(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> list[Sampled]:
        if not sequences:
            return []
        finite = torch.isfinite(logits).all(dim=-1)
        choice = logits if _all_plain(sequences) else self._adjust(logits.clone(), sequences)
        chosen = torch.argmax(choice, dim=-1)
        random_rows = [i for i, s in enumerate(sequences) if s.request.sampling.temperature > 0]
        if random_rows:
            drawn = _draw(choice[random_rows], [sequences[i] for i in random_rows])
            chosen[random_rows] = drawn
        logprobs = _logprobs(logits, chosen, sequences)
        rows = zip(chosen.tolist(), finite.tolist(), logprobs, strict=True)
        return [Sampled(token, lp) if ok else NOT_FINITE for token, ok, lp in rows]

    def _adjust(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
        """Penalties, biases, then what grammars and min_tokens forbid; changes logits."""
        for row, sequence in zip(logits, sequences, strict=True):
            _penalise(row, sequence)
            for token_id, bias in sequence.request.sampling.logit_bias:
                row[token_id] += bias
        _constrain(logits, sequences)
        for row, sequence in zip(logits, sequences, strict=True):
            if sequence.num_output < sequence.request.sampling.min_tokens:
                self._forbid_ends(row, sequence)
        return logits

    def _forbid_ends(self, row: torch.Tensor, sequence: Sequence) -> None:
        ends = list({*self._eos_token_ids, *sequence.request.sampling.stop_token_ids})
        before = row[ends]
        row[ends] = -torch.inf
        # Where a grammar allows nothing else, it is complete: it ends.
        if sequence.matcher is not None and not torch.isfinite(row).any():
            row[ends] = before


def _held_back(sequences: Rows[Sequence]) -> dict[int, Sampled]:
    """Rows without a token in this step: their mask is late, or there will be none."""
    until_s = time.monotonic() + MASK_GRACE_S
    held: dict[int, Sampled] = {}
    for row, sequence in enumerate(sequences):
        matcher = sequence.matcher
        if matcher is None:
            continue
        is_there = matcher.wait(max(until_s - time.monotonic(), 0.0))
        if not is_there or matcher.error is not None:
            held[row] = Sampled(None, error=matcher.error)
    return held


def _constrain(logits: torch.Tensor, sequences: Rows[Sequence]) -> None:
    """-inf where a row's grammar does not let a token come; changes logits of those rows only."""
    masks = {row: s.matcher.mask for row, s in enumerate(sequences) if s.matcher is not None}
    if not masks:
        return
    words = to_device(torch.stack(list(masks.values())), logits.device, torch.int32)
    allowed = allowed_tokens(words, logits.shape[1])
    rows = list(masks)
    logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)


def allowed_tokens(words: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Bits [N, ceil(V / 32)] int32, lowest first → [N, V] bool."""
    bits = words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=words.device)
    return (bits & 1).bool().flatten(1)[:, :vocab_size]


def _all_plain(sequences: Rows[Sequence]) -> bool:
    return all(s.matcher is None and _is_plain(s.request.sampling, s.num_output) for s in sequences)


def _is_plain(params: SamplingParams, num_output: int) -> bool:
    return (
        not params.logit_bias
        and params.repetition_penalty == 1.0
        and params.presence_penalty == params.frequency_penalty == 0.0
        and num_output >= params.min_tokens
    )


def _penalise(row: torch.Tensor, sequence: Sequence) -> None:
    """Repetition: prompt and output (CTRL); presence and frequency: output only (OpenAI)."""
    params = sequence.request.sampling
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(sequence.tokens)), device=row.device)
        values = row[seen]
        scaled = torch.where(values > 0, 1 / params.repetition_penalty, params.repetition_penalty)
        row[seen] = values * scaled
    if sequence.output_counts and (params.presence_penalty or params.frequency_penalty):
        ids = torch.tensor(list(sequence.output_counts.keys()), device=row.device)
        counts = torch.tensor(list(sequence.output_counts.values()), device=row.device)
        row[ids] -= params.presence_penalty + params.frequency_penalty * counts


def _draw(logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
    """Inverse transform sampling with one uniform number of each sequence's own generator.

    How a row is drawn depends on its own parameters and probabilities only, so that its seed gives
    the same tokens in any company.
    """
    params = [sequence.request.sampling for sequence in sequences]
    device = logits.device
    temperature = torch.tensor([p.temperature for p in params], device=device)
    probs = torch.softmax(logits / temperature[:, None], dim=-1)
    uniform = torch.tensor([s.generator.random() for s in sequences], device=device)[:, None]
    drawn = torch.empty(len(params), dtype=torch.int64, device=device)
    plain = [i for i, p in enumerate(params) if not _is_filtered(p)]
    if plain:
        drawn[plain] = _invert(probs[plain], uniform[plain]).squeeze(1)
    filtered = [i for i, p in enumerate(params) if _is_filtered(p)]
    if filtered:
        wanted = [params[i] for i in filtered]
        drawn[filtered] = _draw_filtered(probs[filtered], uniform[filtered], wanted)
    return drawn


def _is_filtered(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _draw_filtered(
    probs: torch.Tensor, uniform: torch.Tensor, params: list[SamplingParams]
) -> torch.Tensor:
    """Among the likeliest NUM_CANDIDATES where those hold all that is kept, else sorted whole."""
    ordered, ids = probs.topk(min(NUM_CANDIDATES, probs.shape[1]), dim=-1)
    tokens = _pick(ordered, ids, uniform, params)
    enough = _holds_all(ordered, params, probs.shape[1])
    wide = [row for row, holds in enumerate(enough) if not holds]
    if wide:
        ordered, ids = probs[wide].sort(dim=-1, descending=True)
        tokens[wide] = _pick(ordered, ids, uniform[wide], [params[row] for row in wide])
    return tokens


def _holds_all(ordered: torch.Tensor, params: list[SamplingParams], vocab: int) -> list[bool]:
    num = ordered.shape[1]
    mass, first, last = (t.tolist() for t in (ordered.sum(dim=-1), ordered[:, 0], ordered[:, -1]))
    return [
        num == vocab
        or 0 < p.top_k <= num
        or (p.top_k <= 0 and (mass[row] > p.top_p or last[row] < p.min_p * first[row]))
        for row, p in enumerate(params)
    ]


def _pick(
    ordered: torch.Tensor, ids: torch.Tensor, uniform: torch.Tensor, params: list[SamplingParams]
) -> torch.Tensor:
    place = _invert(_filtered(ordered, params), uniform)
    return ids.gather(1, place).squeeze(1)


def _filtered(ordered: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """ordered [B, K] descending, zero where top_k, then top_p or min_p leave a token out."""
    device, num = ordered.device, ordered.shape[1]
    top_k = torch.tensor([p.top_k if p.top_k > 0 else num for p in params], device=device)
    top_p = torch.tensor([p.top_p for p in params], device=device)
    min_p = torch.tensor([p.min_p for p in params], device=device)
    ordered = ordered * (torch.arange(num, device=device) < top_k[:, None])
    # top_p is a share of what top_k left over; without top_k, of everything.
    has_top_k = torch.tensor([p.top_k > 0 for p in params], device=device)
    total = torch.where(has_top_k, ordered.sum(dim=-1), 1.0)
    before = ordered.cumsum(dim=-1) - ordered
    kept = (before < (top_p * total)[:, None]) | (top_p >= 1)[:, None]
    # The likeliest token always stays: top_p 0 is greedy.
    kept[:, 0] = True
    kept &= ordered >= min_p[:, None] * ordered[:, :1]
    return ordered * kept


def _invert(probs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The place [B, 1] where the running sum of probs passes uniform [B, 1] of the total."""
    running = probs.cumsum(dim=-1, dtype=torch.float64)
    place = torch.searchsorted(running, uniform.double() * running[:, -1:], right=True)
    # Rounding may point behind the last token that has any probability.
    last = (probs > 0).long() * torch.arange(probs.shape[1], device=probs.device)
    return torch.minimum(place, last.amax(dim=-1, keepdim=True))


def _logprobs(
    logits: torch.Tensor, chosen: torch.Tensor, sequences: Rows[Sequence]
) -> list[TokenLogprobs | None]:
    """Of the model's own distribution, before temperature, penalties and filters."""
    found: list[TokenLogprobs | None] = [None] * len(sequences)
    for row, sequence in enumerate(sequences):
        num = sequence.request.sampling.num_logprobs
        if num is None:
            continue
        values = torch.log_softmax(logits[row], dim=-1)
        top, ids = values.topk(min(num, values.shape[0]))
        pairs = tuple(zip(ids.tolist(), top.tolist(), strict=True))
        found[row] = TokenLogprobs(float(values[chosen[row]]), pairs)
    return found
