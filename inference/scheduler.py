"""What the next forward computes. Numbers only, no tensors.

Ownership: the scheduler takes and gives back everything a sequence holds. KV blocks: taken in _grow
and _admit, given back in _release_blocks. The adapter's claim: taken in add, given back in finish.
Its lease: taken in _admit, given back in finish. finish is called once for every added sequence.

Order: decodes first, then chunks of prefills in progress, then admissions in order of arrival. A
sequence whose adapter is not ready is passed over, so base and other adapters' requests go on;
after MAX_PASSED admissions past it nothing that needs an adapter is admitted before it.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from inference.adapter_pool import Adapter, AdapterPool, Placement
from inference.kv_cache import KvCache
from inference.sequence import Sequence

MAX_PASSED = 64


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

    @property
    def samples(self) -> bool:
        return self.start + self.num_tokens == len(self.sequence.tokens)


@dataclass(frozen=True)
class Plan:
    """One forward. work: decodes first. copies: adapters to copy to their pages before it.

    new_blocks: KV blocks handed out for it; what they held before must not be read.
    """

    work: tuple[Work, ...]
    copies: tuple[Adapter, ...]
    new_blocks: tuple[int, ...]


class Scheduler:
    def __init__(self, limits: Limits, cache: KvCache, adapters: AdapterPool) -> None:
        self.cache = cache
        self.adapters = adapters
        self.num_preemptions = 0
        self.num_adapter_hits = 0
        self.num_adapter_misses = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self._limits = limits
        self._waiting: OrderedDict[str, Sequence] = OrderedDict()
        self._running: OrderedDict[str, Sequence] = OrderedDict()
        self._copies: list[Adapter] = []
        self._new_blocks: list[int] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._running.values()
        yield from self._waiting.values()

    def find(self, request_id: str) -> Sequence | None:
        return self._running.get(request_id) or self._waiting.get(request_id)

    def add(self, sequence: Sequence) -> None:
        if sequence.digest is not None:
            self.adapters.claim(sequence.digest)
        self._waiting[sequence.request_id] = sequence

    def waiting_for_host(self) -> dict[str, list[Sequence]]:
        """Sequences whose adapter has to come from disk first, by its digest."""
        found: dict[str, list[Sequence]] = {}
        for sequence in self._waiting.values():
            if sequence.digest and self._placement(sequence) is Placement.NOT_ON_HOST:
                found.setdefault(sequence.digest, []).append(sequence)
        return found

    def finish(self, sequence: Sequence) -> Adapter | None:
        """Takes the sequence out and gives back all it holds; an adapter that is gone with it."""
        del (self._running if sequence.request_id in self._running else self._waiting)[
            sequence.request_id
        ]
        self._release_blocks(sequence)
        if sequence.digest is None:
            return None
        if sequence.slot is not None:
            self.adapters.release(sequence.digest)
            sequence.slot = None
        return self.adapters.unclaim(sequence.digest)

    def schedule(self) -> Plan:
        """The next forward; empty work when there is nothing to do."""
        self._copies, self._new_blocks = self.adapters.place_pinned(), []
        budget = self._limits.max_batch_tokens
        work: dict[str, Work] = {}
        # Sorted by pending tokens is decodes first; the sort is stable.
        for sequence in sorted(self._running.values(), key=lambda s: s.num_pending > 1):
            num_tokens = min(sequence.num_pending, budget)
            if num_tokens and self._grow(sequence, num_tokens, work):
                work[sequence.request_id] = Work(sequence, sequence.num_computed, num_tokens)
                budget -= num_tokens
        self._admit_waiting(budget, work)
        ordered = sorted(work.values(), key=lambda w: w.num_tokens > 1)
        return Plan(tuple(ordered), tuple(self._copies), tuple(self._new_blocks))

    def computed(self, work: Work) -> None:
        """The work's keys and values are written: count them and let others find full blocks."""
        sequence = work.sequence
        sequence.num_computed = work.start + work.num_tokens
        tokens = sequence.tokens[: sequence.num_computed]
        if len(tokens) // self.cache.block_size > len(sequence.nodes):
            self.cache.commit(sequence.namespace, tokens, sequence.blocks, sequence.nodes)

    def check_integrity(self) -> None:
        """Raises AssertionError unless blocks, claims and leases agree with the sequences."""
        self.cache.check_integrity([s.blocks for s in self])
        claims: dict[str, int] = {}
        leases: dict[str, int] = {}
        for sequence in self:
            if sequence.digest is not None:
                claims[sequence.digest] = claims.get(sequence.digest, 0) + 1
                held = int(sequence.slot is not None)
                leases[sequence.digest] = leases.get(sequence.digest, 0) + held
        self.adapters.check_integrity(claims, leases)
        assert self.num_running <= self._limits.max_num_seqs, "too many sequences run"

    def _placement(self, sequence: Sequence) -> Placement:
        if sequence.digest is None or sequence.slot is not None:
            return Placement.READY
        return self.adapters.placement(sequence.digest)

    def _grow(self, sequence: Sequence, num_tokens: int, work: dict[str, Work]) -> bool:
        """Blocks for the next tokens, taken from the youngest sequences if need be."""
        if sequence.request_id not in self._running:
            return False
        wanted = self.cache.num_blocks_for(sequence.num_computed + num_tokens)
        missing = wanted - len(sequence.blocks)
        while missing > self.cache.num_free:
            victim = next(reversed(self._running.values()))
            self._preempt(victim)
            work.pop(victim.request_id, None)
            if victim is sequence:
                return False
        self._take_blocks(sequence, missing)
        return True

    def _take_blocks(self, sequence: Sequence, num_blocks: int) -> None:
        if num_blocks > 0:
            blocks = self.cache.allocate(num_blocks)
            assert blocks is not None, "room was checked before"
            sequence.blocks.extend(blocks)
            self._new_blocks.extend(blocks)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the head of the queue, to compute again. The lease stays: slots are not KV."""
        del self._running[sequence.request_id]
        self._release_blocks(sequence)
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting[sequence.request_id] = sequence
        self._waiting.move_to_end(sequence.request_id, last=False)

    def _release_blocks(self, sequence: Sequence) -> None:
        self.cache.release(sequence.blocks)
        sequence.blocks = []
        sequence.nodes = []

    def _admit_waiting(self, budget: int, work: dict[str, Work]) -> None:
        passed: list[Sequence] = []
        for sequence in list(self._waiting.values()):
            if budget <= 0 or self.num_running >= self._limits.max_num_seqs:
                break
            overdue = any(other.num_passed >= MAX_PASSED for other in passed)
            needs_adapter = sequence.digest is not None and sequence.slot is None
            if (overdue and needs_adapter) or self._placement(sequence) is not Placement.READY:
                passed.append(sequence)
                continue
            num_tokens = self._admit(sequence, budget)
            if num_tokens == 0:
                break
            work[sequence.request_id] = Work(sequence, sequence.num_computed, num_tokens)
            budget -= num_tokens
            for other in passed:
                other.num_passed += needs_adapter

    def _admit(self, sequence: Sequence, budget: int) -> int:
        """Moves the sequence to running if its prompt fits now; the tokens to compute first."""
        prefix = self.cache.match(sequence.namespace, sequence.tokens)
        num_missing = self.cache.num_blocks_for(len(sequence.tokens)) - len(prefix.blocks)
        room = self.cache.num_free - self.cache.num_unreferenced(prefix.blocks)
        # One block is left for the next tokens of each that runs.
        if num_missing + self.num_running > room:
            return 0
        self.cache.acquire(prefix.blocks)
        sequence.blocks, sequence.nodes = list(prefix.blocks), list(prefix.nodes)
        sequence.num_computed = len(prefix.blocks) * self.cache.block_size
        num_tokens = min(sequence.num_pending, budget)
        wanted = self.cache.num_blocks_for(sequence.num_computed + num_tokens)
        self._take_blocks(sequence, wanted - len(sequence.blocks))
        self._lease(sequence)
        self._count_admission(sequence)
        self._running[sequence.request_id] = self._waiting.pop(sequence.request_id)
        return num_tokens

    def _lease(self, sequence: Sequence) -> None:
        if sequence.digest is None or sequence.slot is not None:
            return
        must_copy = self.adapters.lease(sequence.digest)
        adapter = self.adapters.find(sequence.digest)
        assert adapter is not None
        sequence.slot = adapter.slot
        if must_copy:
            self._copies.append(adapter)
            self.num_adapter_misses += 1
        else:
            self.num_adapter_hits += 1

    def _count_admission(self, sequence: Sequence) -> None:
        if sequence.is_admitted:
            return
        sequence.is_admitted = True
        sequence.num_cached = sequence.num_computed
        self.num_prompt_tokens += len(sequence.request.token_ids)
        self.num_cached_tokens += sequence.num_cached
