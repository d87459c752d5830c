"""One forward as the scheduler plans it."""

from dataclasses import dataclass

from inference.adapter import Adapter
from inference.sequence import Sequence


@dataclass(frozen=True)
class Limits:
    """Sequences running at once, and tokens of one forward."""

    max_num_seqs: int
    max_batch_tokens: int


@dataclass(frozen=True)
class Work:
    """num_tokens of sequence from start on. samples: the last of them yields a new token."""

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    epoch: int

    @classmethod
    def of(cls, sequence: Sequence, num_tokens: int) -> "Work":
        """The next num_tokens that are pending."""
        samples = num_tokens == sequence.num_pending
        return cls(sequence, sequence.num_computed, num_tokens, samples, sequence.epoch)

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def is_live(self) -> bool:
        """What it computes still counts."""
        return self.epoch == self.sequence.epoch


@dataclass(frozen=True)
class Plan:
    """One forward. work: decodes first. copies: adapters whose copies to their pages start before
    it; those that it needs are among them only where copies are made at once.

    new_blocks: KV blocks handed out for it; what they held before must not be read.
    """

    work: tuple[Work, ...]
    copies: tuple[Adapter, ...]
    new_blocks: tuple[int, ...]
