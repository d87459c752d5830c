"""The tensors that a captured decode step reads, and how a step's rows get there."""

from collections.abc import Sequence as Rows

import numpy as np
import torch

from inference.batch import ForwardBatch, SequenceBatch, TokenBatch
from inference.lora import LoraStep
from inference.plan import Work
from inference.token_rows import known_or_drawn
from inference.transfer import to_device

TOKEN, LENGTH, SLOT, SOURCE = range(4)

EMPTY_ROW = ((0,), (0,), (-1,), (-1,))


class DecodeInputs:
    """Of up to max_num_seqs rows, each the decode of one sequence. Only the loop's thread calls.

    last_tokens [max_num_seqs] int64: what the step before drew, for rows of unknown tokens.

    Invariant: row r of the device's block table begins with self._blocks[r][: self._num_blocks[r]];
    what lies behind is never read, for a row's length ends before it.
    """

    def __init__(
        self, max_num_seqs: int, max_model_len: int, block_size: int, last_tokens: torch.Tensor
    ) -> None:
        device = last_tokens.device
        self._last_tokens = last_tokens
        self._block_size = block_size
        self._max_model_len = max_model_len
        width = -(-max_model_len // block_size)
        # Token ids, lengths with the new token, adapter slots, places among the last tokens.
        self._ints = torch.zeros(4, max_num_seqs, dtype=torch.int32, device=device)
        self._tables = torch.zeros(max_num_seqs, width, dtype=torch.int32, device=device)
        self._starts = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device)
        self._host_ints = torch.zeros(4, max_num_seqs, dtype=torch.int32)
        self._blocks: list[list[int]] = [[] for _ in range(max_num_seqs)]
        self._num_blocks = [0] * max_num_seqs

    @property
    def lengths(self) -> torch.Tensor:
        """[max_num_seqs] int32: each row's positions with its token, 0 for an empty one."""
        return self._ints[LENGTH]

    @property
    def tables(self) -> torch.Tensor:
        """[max_num_seqs, blocks of max_model_len] int32."""
        return self._tables

    @property
    def slots(self) -> torch.Tensor:
        """[max_num_seqs] int32: each row's adapter, -1 for none."""
        return self._ints[SLOT]

    def fill(self, work: Rows[Work], bucket: int) -> None:
        """Writes the rows, and empty ones up to bucket."""
        host = self._host_ints.numpy()
        host[:, :bucket] = EMPTY_ROW
        host[:, : len(work)] = np.array([_row(item) for item in work]).reshape(-1, len(EMPTY_ROW)).T
        self._ints.copy_(to_device(self._host_ints, self._ints.device, torch.int32))
        self._fill_tables(work)

    def batch(self, bucket: int, lora: LoraStep | None) -> ForwardBatch:
        """The rows up to bucket, made on the device of what was filled in: capturable."""
        lengths, sources = self._ints[LENGTH, :bucket], self._ints[SOURCE, :bucket].long()
        token_ids = known_or_drawn(self._ints[TOKEN, :bucket], sources, self._last_tokens)
        tables, positions = self._tables[:bucket], (lengths.long() - 1).clamp_(min=0)
        blocks = tables.gather(1, (positions // self._block_size)[:, None])[:, 0].long()
        places = blocks * self._block_size + positions % self._block_size
        tokens = TokenBatch(token_ids, positions, torch.where(lengths > 0, places, -1), lora)
        starts, longest = self._starts[: bucket + 1], self._max_model_len
        sequences = SequenceBatch(tables, starts, lengths, bucket, longest, ())
        return ForwardBatch(tokens, sequences, None)

    def _fill_tables(self, work: Rows[Work]) -> None:
        """Sends what changed: a row's new blocks, or all of a row that another sequence has now."""
        places: list[int] = []
        values: list[int] = []
        width = self._tables.shape[1]
        for row, item in enumerate(work):
            blocks = item.sequence.blocks
            known = self._num_blocks[row] if self._blocks[row] is blocks else 0
            if known < len(blocks):
                places += range(row * width + known, row * width + len(blocks))
                values += blocks[known:]
                self._blocks[row], self._num_blocks[row] = blocks, len(blocks)
        if places:
            sent = to_device([places, values], self._tables.device)
            self._tables.view(-1)[sent[0]] = sent[1].int()


def _row(work: Work) -> tuple[int, int, int, int]:
    sequence = work.sequence
    # A prompt's single token comes here too: an activated LoRA may not have begun.
    slot = sequence.slot_at(work.start)
    if sequence.unknown_at is None:
        return sequence.tokens[work.start], work.end, slot, -1
    return 0, work.end, slot, sequence.unknown_at
