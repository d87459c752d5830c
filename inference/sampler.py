"""From logits to tokens. Each row depends on its own request only, never on neighbours."""

import time
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch

from inference.adjust import adjusted, is_plain
from inference.errors import EngineError, ErrorCode
from inference.request import SamplingParams, TokenLogprobs
from inference.sequence import Sequence
from inference.transfer import Arrival, to_device, to_host
from kernels.sampling import argmax

# Most nuclei lie within this many tokens; only the others pay for a full sort.
NUM_CANDIDATES = 256
# How long a step waits for masks that are still being made; without one a row is left out.
MASK_GRACE_S = 0.005
# In place of a token: the logits are not finite; the nucleus is wider than the candidates.
NOT_FINITE, TOO_WIDE = -1, -2


@dataclass(frozen=True)
class Sampled:
    """token_id None: there is none, and error says why; without an error: not this time, and the
    same forward may be run again. is_too_wide: for the sequence's next draw to be from all tokens.
    """

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    error: EngineError | None = None
    is_too_wide: bool = False


@dataclass(frozen=True)
class Drawn:
    """Tokens of some sequences on their way. tokens [D]: on the device, of the sequences of rows,
    in order; held: what is known of the others.
    """

    rows: list[int]
    held: dict[int, Sampled]
    tokens: torch.Tensor
    codes: Arrival
    logprobs: dict[int, tuple[Arrival, Arrival]]

    def collect(self) -> list[Sampled]:
        """Waits. One for each sequence."""
        found = dict(self.held)
        for place, (row, code) in enumerate(
            zip(self.rows, self.codes.wait().tolist(), strict=True)
        ):
            found[row] = _sampled(code, self.logprobs.get(place))
        return [found[row] for row in range(len(found))]


def _sampled(code: int, logprobs: tuple[Arrival, Arrival] | None) -> Sampled:
    if code == NOT_FINITE:
        message = "the model's output is not finite"
        return Sampled(None, error=EngineError(ErrorCode.NON_FINITE_LOGITS, message))
    if code == TOO_WIDE:
        return Sampled(None, is_too_wide=True)
    return Sampled(code, None if logprobs is None else _logprobs(*logprobs))


class Sampler:
    """eos_token_ids: forbidden while a sequence is below min_tokens."""

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos_token_ids = eos_token_ids

    def launch(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> Drawn:
        """logits [B, V] of any float dtype, row by row for the sequences; not waited for."""
        held = _held_back(sequences)
        rows = [row for row in range(len(sequences)) if row not in held]
        if held:
            logits = logits[to_device(rows, logits.device)]
        drawing = [sequences[row] for row in rows]
        codes = self._codes(logits, drawing)
        # A row without a token is dropped, but a step on its way reads a token of the vocabulary.
        tokens = codes.clamp(min=0)
        return Drawn(rows, held, tokens, to_host(codes), _launch_logprobs(logits, tokens, drawing))

    def _codes(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
        """[B] int64: tokens, or what stands in place of one."""
        codes = argmax(logits)
        choice = logits
        if not all(map(is_plain, sequences)):
            choice = adjusted(logits, sequences, self._eos_token_ids)
            codes = torch.where(codes < 0, NOT_FINITE, choice.argmax(dim=-1))
        random = [i for i, s in enumerate(sequences) if s.request.sampling.temperature > 0]
        if random:
            index = to_device(random, logits.device)
            drawn = draw(choice[index].float(), [sequences[i] for i in random])
            codes[index] = torch.where(codes[index] < 0, NOT_FINITE, drawn)
        return codes


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


def draw(logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
    """Inverse transform sampling with one uniform number of each sequence's own generator: tokens
    [B], TOO_WIDE where one may not be right.

    How a row is drawn depends on its own parameters and probabilities only, so that its seed gives
    the same tokens in any company.
    """
    params = [sequence.request.sampling for sequence in sequences]
    device = logits.device
    temperature = to_device([p.temperature for p in params], device, torch.float32)
    probs = torch.softmax(logits / temperature[:, None], dim=-1)
    numbers = [s.generator.random() for s in sequences]
    uniform = to_device(numbers, device, torch.float32)[:, None]
    tokens = torch.empty(len(params), dtype=torch.int64, device=device)
    plain = [i for i, p in enumerate(params) if not _is_filtered(p)]
    wide = [i for i, s in enumerate(sequences) if s.draws_wide and _is_filtered(params[i])]
    narrow = sorted(set(range(len(params))) - set(plain) - set(wide))
    if plain:
        rows = to_device(plain, device)
        tokens[rows] = _invert(probs[rows], uniform[rows]).squeeze(1)
    if wide:
        rows = to_device(wide, device)
        tokens[rows] = _draw_wide(probs[rows], uniform[rows], [params[i] for i in wide])
    if narrow:
        rows = to_device(narrow, device)
        tokens[rows] = _draw_narrow(probs[rows], uniform[rows], [params[i] for i in narrow])
    return tokens


def _draw_wide(
    probs: torch.Tensor, uniform: torch.Tensor, params: list[SamplingParams]
) -> torch.Tensor:
    ordered, ids = probs.sort(dim=-1, descending=True)
    return _pick(ordered, ids, uniform, params)


def _draw_narrow(
    probs: torch.Tensor, uniform: torch.Tensor, params: list[SamplingParams]
) -> torch.Tensor:
    """Among the likeliest; TOO_WIDE where more than those are kept."""
    vocab = probs.shape[1]
    ordered, ids = probs.topk(min(NUM_CANDIDATES, vocab), dim=-1)
    picked = _pick(ordered, ids, uniform, params)
    return torch.where(_holds_all(ordered, params, vocab), picked, TOO_WIDE)


def _is_filtered(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _holds_all(ordered: torch.Tensor, params: list[SamplingParams], vocab: int) -> torch.Tensor:
    """Whether the likeliest [B, K] hold all that is kept."""
    num, device = ordered.shape[1], ordered.device
    if num == vocab:
        return torch.ones(len(params), dtype=torch.bool, device=device)
    is_counted = [0 < p.top_k <= num for p in params]
    is_open = [p.top_k <= 0 for p in params]
    flags = to_device([is_counted, is_open], device, torch.bool)
    shares = to_device([[p.top_p, p.min_p] for p in params], device, torch.float32)
    has_mass = ordered.sum(dim=-1) > shares[:, 0]
    has_least = ordered[:, -1] < shares[:, 1] * ordered[:, 0]
    return flags[0] | (flags[1] & (has_mass | has_least))


def _pick(
    ordered: torch.Tensor, ids: torch.Tensor, uniform: torch.Tensor, params: list[SamplingParams]
) -> torch.Tensor:
    place = _invert(_filtered(ordered, params), uniform)
    return ids.gather(1, place).squeeze(1)


def _filtered(ordered: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """ordered [B, K] descending, zero where top_k, then top_p or min_p leave a token out."""
    device, num = ordered.device, ordered.shape[1]
    top_k = to_device([p.top_k if p.top_k > 0 else num for p in params], device)
    top_p = to_device([p.top_p for p in params], device, torch.float32)
    min_p = to_device([p.min_p for p in params], device, torch.float32)
    ordered = ordered * (torch.arange(num, device=device) < top_k[:, None])
    # top_p is a share of what top_k left over; without top_k, of everything.
    has_top_k = to_device([p.top_k > 0 for p in params], device, torch.bool)
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


def _launch_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, sequences: Rows[Sequence]
) -> dict[int, tuple[Arrival, Arrival]]:
    """Of the model's own distribution, before temperature, penalties and filters: by row, ids and
    values of the likeliest, the drawn token's value before them.
    """
    found = {}
    for row, sequence in enumerate(sequences):
        num = sequence.request.sampling.num_logprobs
        if num is not None:
            values = torch.log_softmax(logits[row].float(), dim=-1)
            top, ids = values.topk(min(num, values.shape[0]))
            drawn = values.gather(0, tokens[row : row + 1])
            found[row] = (to_host(ids), to_host(torch.cat((drawn, top))))
    return found


def _logprobs(ids: Arrival, values: Arrival) -> TokenLogprobs:
    drawn, *top = values.wait().tolist()
    return TokenLogprobs(drawn, tuple(zip(ids.wait().tolist(), top, strict=True)))
