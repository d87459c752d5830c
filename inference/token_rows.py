"""A step's tokens as columns of numbers, on the host."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import torch

from inference.plan import Work


@dataclass
class TokenRows:
    """By token. places: in the KV cache, block · BS + offset; slots: the adapter's, -1 for none;
    sources: of a token that only the device knows, its place among the last ones, else -1.
    """

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)


def token_rows(work: Rows[Work], block_size: int) -> TokenRows:
    rows = TokenRows()
    for item in work:
        sequence, start, end = item.sequence, item.start, item.end
        rows.token_ids += sequence.tokens[start:end]
        rows.positions += range(start, end)
        blocks = sequence.blocks
        rows.places += [
            blocks[p // block_size] * block_size + p % block_size for p in range(start, end)
        ]
        rows.slots += sequence.slots(start, end)
        rows.sources += [
            -1 if sequence.unknown_at is None else sequence.unknown_at
        ] * item.num_tokens
    return rows


def known_or_drawn(
    token_ids: torch.Tensor, sources: torch.Tensor, last_tokens: torch.Tensor
) -> torch.Tensor:
    """token_ids [T], but where sources [T] int64 name a place: what was drawn there. Capturable."""
    return torch.where(sources >= 0, last_tokens[sources.clamp(min=0)], token_ids)


def padded_tables(work: Rows[Work]) -> list[list[int]]:
    """Each sequence's blocks, filled up with the null block to the longest."""
    longest = max(len(item.sequence.blocks) for item in work)
    rows = (item.sequence.blocks for item in work)
    return [blocks + [0] * (longest - len(blocks)) for blocks in rows]
