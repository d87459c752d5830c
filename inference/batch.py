"""One forward as tensors. Made by model_runner, read by model and ops; nothing is global."""

from dataclasses import dataclass

import torch

from inference.lora import LoraStep


@dataclass(frozen=True)
class TokenBatch:
    """What all of a layer but its attention reads."""

    # [T] int64
    token_ids: torch.Tensor
    # [T] int64
    positions: torch.Tensor
    # [T] int64: block · BS + offset, where the token's key and value go; -1: nowhere
    places: torch.Tensor
    lora: LoraStep | None


@dataclass(frozen=True)
class SequenceBatch:
    """What attention reads. Decodes first, then prefill chunks, tokens of one side by side.

    prefills: (tokens of the chunk, positions with the chunk) of each sequence that is not a decode.
    """

    # [B, max_blocks] int32, padded with the null block
    block_tables: torch.Tensor
    # [B + 1] int32
    query_start: torch.Tensor
    # [B] int32: positions with this step's
    context_lens: torch.Tensor
    num_decodes: int
    max_decode_context: int
    prefills: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class AnySequences:
    """What attention reads of a step that only the device knows, for graphs that serve any.

    decodes: (block_tables [R, max_blocks], context_lens [R]); chunks: (block_tables
    [P, max_blocks], query_start [P + 1], context_lens [P]). int32, as attention_of_any's.
    """

    decodes: tuple[torch.Tensor, torch.Tensor]
    chunks: tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class ForwardBatch:
    tokens: TokenBatch
    sequences: SequenceBatch
    # [samples] int64: the tokens whose logits are wanted; None: every token's
    logits_rows: torch.Tensor | None
