"""What requests do to their rows of logits before a token is chosen; never to another's.

All rows together, in a few operations whatever their number: on a GPU each costs the loop the same.
"""

from collections.abc import Sequence as Rows

import torch

from inference.sequence import Sequence
from inference.transfer import to_device

# (row, token id) to a value; each pair once.
Entries = dict[tuple[int, int], float]


def is_plain(sequence: Sequence) -> bool:
    """Nothing would be changed."""
    params = sequence.request.sampling
    return (
        sequence.matcher is None
        and not params.logit_bias
        and params.repetition_penalty == 1.0
        and params.presence_penalty == params.frequency_penalty == 0.0
        and sequence.num_output >= params.min_tokens
    )


def adjusted(
    logits: torch.Tensor, sequences: Rows[Sequence], eos_token_ids: tuple[int, ...]
) -> torch.Tensor:
    """logits [B, V] → new fp32 [B, V]: penalties, biases, then what grammars, min_tokens forbid.

    Repetition: prompt and output (CTRL); presence and frequency: output only (OpenAI).
    """
    logits = logits.to(torch.float32, copy=True)
    _scale(logits, _repetition_of(sequences))
    _add(logits, _additions_of(sequences))
    _constrain(logits, sequences)
    _forbid_ends(logits, sequences, eos_token_ids)
    return logits


def _repetition_of(sequences: Rows[Sequence]) -> Entries:
    return {
        (row, token_id): sequence.request.sampling.repetition_penalty
        for row, sequence in enumerate(sequences)
        if sequence.request.sampling.repetition_penalty != 1.0
        for token_id in set(sequence.tokens)
    }


def _additions_of(sequences: Rows[Sequence]) -> Entries:
    found: Entries = {}
    for row, sequence in enumerate(sequences):
        params = sequence.request.sampling
        if params.presence_penalty or params.frequency_penalty:
            for token_id, count in sequence.output_counts.items():
                found[row, token_id] = -params.presence_penalty - params.frequency_penalty * count
        for token_id, bias in params.logit_bias:
            found[row, token_id] = found.get((row, token_id), 0.0) + bias
    return found


def _places(
    entries: Rows[tuple[int, int]] | Entries, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Rows and columns."""
    return to_device(list(entries), device).unbind(1)


def _scale(logits: torch.Tensor, penalties: Entries) -> None:
    """Away from likely: a positive logit is divided, a negative one multiplied."""
    if not penalties:
        return
    places = _places(penalties, logits.device)
    factors = to_device(list(penalties.values()), logits.device, torch.float32)
    values = logits[places]
    logits[places] = torch.where(values > 0, values / factors, values * factors)


def _add(logits: torch.Tensor, additions: Entries) -> None:
    if additions:
        places = _places(additions, logits.device)
        logits[places] += to_device(list(additions.values()), logits.device, torch.float32)


def _constrain(logits: torch.Tensor, sequences: Rows[Sequence]) -> None:
    """-inf where a row's grammar does not let a token come."""
    masks = {row: s.matcher.mask for row, s in enumerate(sequences) if s.matcher is not None}
    if not masks:
        return
    words = to_device(torch.stack(list(masks.values())), logits.device, torch.int32)
    allowed = allowed_tokens(words, logits.shape[1])
    rows = to_device(list(masks), logits.device)
    logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)


def allowed_tokens(words: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Bits [N, ceil(V / 32)] int32, lowest first → [N, V] bool."""
    bits = words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=words.device)
    return (bits & 1).bool().flatten(1)[:, :vocab_size]


def _forbid_ends(
    logits: torch.Tensor, sequences: Rows[Sequence], eos_token_ids: tuple[int, ...]
) -> None:
    early = [
        (row, sequence)
        for row, sequence in enumerate(sequences)
        if sequence.num_output < sequence.request.sampling.min_tokens
    ]
    ends = [
        (row, token_id)
        for row, sequence in early
        for token_id in {*eos_token_ids, *sequence.request.sampling.stop_token_ids}
    ]
    if not ends:
        return
    places = _places(ends, logits.device)
    before = logits[places]
    logits[places] = -torch.inf
    held = [row for row, sequence in early if sequence.matcher is not None]
    if held:
        is_over = _is_over(logits, held)
        logits[places] = torch.where(is_over[places[0]], before, -torch.inf)


def _is_over(logits: torch.Tensor, held: list[int]) -> torch.Tensor:
    """[B] bool: rows whose grammar now allows nothing. It is complete: they end."""
    rows = to_device(held, logits.device)
    is_over = torch.zeros(logits.shape[0], dtype=torch.bool, device=logits.device)
    is_over[rows] = ~torch.isfinite(logits[rows]).any(dim=-1)
    return is_over
