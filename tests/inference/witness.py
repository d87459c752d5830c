"""What the device's memory really holds, kept beside the bookkeeping that only says so.

A key and value depend on all tokens up to theirs, on the adapter of each, and may be read in one
tenant's requests only. Each written place gets a number that stands for just that; each forward
then reads every place that attention would read, and finds its own number there or fails. It reads
the pages of its adapters too: they hold that version, whole.
"""

from collections.abc import Iterable, Mapping

from inference.adapter import Adapter
from inference.adapter_pool import AdapterPool
from inference.plan import Plan, Work
from inference.sequence import UNKNOWN, Sequence

Content = tuple[int, int, str | None, str]


class Witness:
    """block_size in tokens. num_reused: by request, tokens at admission that others had written."""

    def __init__(self, block_size: int, pool: AdapterPool) -> None:
        self._block_size = block_size
        self._pool = pool
        self._digest_by_page: dict[int, str] = {}
        self._numbers: dict[Content, int] = {}
        self._held: dict[tuple[int, int], int] = {}
        self.num_reused: dict[str, int] = {}

    def start_copy(self, adapter: Adapter) -> None:
        """From now on its pages hold anything."""
        for page in adapter.pages:
            self._digest_by_page.pop(page, None)

    def end_copy(self, adapter: Adapter) -> None:
        self._digest_by_page |= dict.fromkeys(adapter.pages, adapter.digest)

    def run(self, plan: Plan, drawn: Mapping[str, int]) -> None:
        """The forward: new blocks hold nothing, then all works write and read. drawn: by request,
        the token that only the device knows.
        """
        for block in plan.new_blocks:
            for offset in range(self._block_size):
                self._held.pop((block, offset), None)
        for work in plan.work:
            self._check_adapter(work.sequence)
            self._compute(work, drawn.get(work.sequence.request_id, UNKNOWN))

    def _check_adapter(self, sequence: Sequence) -> None:
        if sequence.digest is None:
            assert sequence.slot is None
            return
        adapter = self._pool.find(sequence.digest)
        assert adapter is not None and adapter.slot == sequence.slot is not None
        held = {self._digest_by_page.get(page) for page in adapter.pages}
        assert held == {sequence.digest}, f"{sequence.request_id} would run with another's weights"

    def _compute(self, work: Work, drawn: int) -> None:
        sequence = work.sequence
        self.num_reused.setdefault(sequence.request_id, work.start)
        wanted = list(self._contents(sequence, work.end, drawn))
        for position, content in enumerate(wanted):
            place = self._place(sequence, position)
            if position >= work.start:
                self._held[place] = content
            assert self._held.get(place) == content, (
                f"position {position} of {sequence.request_id} holds another's keys and values"
            )

    def _place(self, sequence: Sequence, position: int) -> tuple[int, int]:
        return sequence.blocks[position // self._block_size], position % self._block_size

    def _contents(self, sequence: Sequence, num_tokens: int, drawn: int) -> Iterable[int]:
        number = 0
        for position, token in enumerate(sequence.tokens[:num_tokens]):
            digest = sequence.digest if position >= sequence.lora_start else None
            known = drawn if token == UNKNOWN else token
            assert known != UNKNOWN, "a token is read that nobody has drawn"
            key = (number, known, digest, sequence.request.cache_salt)
            number = self._numbers.setdefault(key, len(self._numbers) + 1)
            yield number
