"""The tensors that a captured decode step reads, and how a step's rows get there."""

from collections.abc import Sequence as Rows

import torch

from inference.batch import ForwardBatch
from inference.lora import LoraStep
from inference.scheduler import Work
from inference.transfer import to_device

TOKEN, LENGTH, SLOT = range(3)


class DecodeInputs:
    """Of up to max_num_seqs rows, each the decode of one sequence. Only the loop's thread calls.

    Invariant: row r of the device's block table begins with self._blocks[r][: self._num_blocks[r]];
    what lies behind is never read, for a row's length ends before it.
    """

    def __init__(
        self, max_num_seqs: int, max_model_len: int, block_size: int, device: torch.device
    ) -> None:
        self._block_size = block_size
        self._max_model_len = max_model_len
        width = -(-max_model_len // block_size)
        # Token ids, lengths with the new token, adapter slots.
        self._ints = torch.zeros(3, max_num_seqs, dtype=torch.int32, device=device)
        self._tables = torch.zeros(max_num_seqs, width, dtype=torch.int32, device=device)
        self._starts = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device)
        self._host_ints = torch.zeros(3, max_num_seqs, dtype=torch.int32)
        self._blocks: list[list[int]] = [[] for _ in range(max_num_seqs)]
        self._num_blocks = [0] * max_num_seqs

    @property
    def slots(self) -> torch.Tensor:
        """[max_num_seqs] int32: each row's adapter, -1 for none."""
        return self._ints[SLOT]

    def fill(self, work: Rows[Work], bucket: int) -> None:
        """Writes the rows, and empty ones up to bucket."""
        host = self._host_ints.numpy()
        host[TOKEN, :bucket], host[LENGTH, :bucket], host[SLOT, :bucket] = 0, 0, -1
        for row, item in enumerate(work):
            slot = item.sequence.slot
            host[TOKEN, row] = item.sequence.tokens[item.start]
            host[LENGTH, row] = item.start + 1
            host[SLOT, row] = -1 if slot is None else slot
        self._ints.copy_(to_device(self._host_ints, self._ints.device, torch.int32))
        self._fill_tables(work)

    def batch(self, bucket: int, lora: LoraStep | None) -> ForwardBatch:
        """The rows up to bucket, made on the device of what was filled in: capturable."""
        token_ids, lengths = self._ints[TOKEN, :bucket].long(), self._ints[LENGTH, :bucket]
        tables, positions = self._tables[:bucket], (lengths.long() - 1).clamp_(min=0)
        blocks = tables.gather(1, (positions // self._block_size)[:, None])[:, 0].long()
        places = blocks * self._block_size + positions % self._block_size
        return ForwardBatch(
            token_ids=token_ids,
            positions=positions,
            places=torch.where(lengths > 0, places, -1),
            block_tables=tables,
            query_start=self._starts[: bucket + 1],
            context_lens=lengths,
            num_decodes=bucket,
            max_decode_context=self._max_model_len,
            prefills=(),
            logits_rows=None,
            lora=lora,
        )

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
