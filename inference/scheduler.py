"""What the next forward computes. Numbers only, no tensors.

Ownership: the scheduler takes and gives back everything a sequence holds. KV blocks: taken in _grow
and _admit, given back in _release_blocks. The adapter's claim: taken in add, given back in finish.
Its lease: taken in _admit, given back in finish. finish is called once for every added sequence.

Order: decodes first, then chunks of prefills in progress, then admissions in the order of turns
(waiting.py). What a tenant waits is bounded whatever the others send: between a request's arrival
at an idle tenant i and its admission, another tenant j is served no more than

    w_j / w_i · own_i + p_j + flight_j

in units of PROMPT_UNITS and OUTPUT_UNITS; w: weights; own_i: what i's last request and those that
ran beside it cost; p_j: the longest prompt of j; flight_j: what is left of as many requests of j as
run at once (max_num_seqs at most). A request without room for its adapter waits for MAX_PASSED
admissions more, and then until those that hold the room have ended.
"""

import time
from collections.abc import Iterator

from inference.adapter import Adapter
from inference.adapter_pool import AdapterPool
from inference.kv_cache import KvCache
from inference.plan import Limits, Plan, Work
from inference.sequence import Sequence
from inference.stats import QueueTimes
from inference.waiting import Waiting


class Scheduler:
    def __init__(self, limits: Limits, cache: KvCache, adapters: AdapterPool) -> None:
        self.cache = cache
        self.adapters = adapters
        self.num_preemptions = 0
        self.num_adapter_hits = 0
        self.num_adapter_misses = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.queue_times = QueueTimes()
        self._limits = limits
        self._waiting = Waiting(adapters)
        # Their grammar is being compiled: not in anybody's way, and not yet in turn.
        self.preparing: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}
        self._copies: list[Adapter] = []
        self._new_blocks: list[int] = []
        self._is_checked = False

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self.preparing)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._running.values()
        yield from self._waiting
        yield from self.preparing.values()

    def find(self, request_id: str) -> Sequence | None:
        found = self._running.get(request_id) or self._waiting.find(request_id)
        return found or self.preparing.get(request_id)

    def add(self, sequence: Sequence) -> None:
        if sequence.digest is not None:
            self.adapters.claim(sequence.digest)
        if sequence.grammar is None:
            self._waiting.add(sequence)
        else:
            self.preparing[sequence.request_id] = sequence

    def prepared(self, sequence: Sequence) -> None:
        """Its matcher is there: it may be admitted."""
        self._waiting.add(self.preparing.pop(sequence.request_id))

    def waiting_for_host(self) -> dict[str, list[Sequence]]:
        """Sequences whose adapter has to come from disk first, by its digest: those next in turn,
        of a bounded number of adapters.
        """
        return self._waiting.away()

    def finish(self, sequence: Sequence) -> Adapter | None:
        """Takes the sequence out and gives back all it holds; an adapter that is gone with it."""
        if self.preparing.pop(sequence.request_id, None) is None:
            if self._running.pop(sequence.request_id, None) is None:
                self._waiting.remove(sequence)
            self._waiting.end(sequence)
        self._release_blocks(sequence)
        sequence.is_ended = True
        sequence.epoch += 1
        if sequence.digest is None:
            return None
        if sequence.slot is not None:
            self.adapters.release(sequence.digest)
            sequence.slot = None
            self._waiting.adapter_moved(sequence.digest)
        return self.adapters.unclaim(sequence.digest)

    def schedule(self) -> Plan:
        """The next forward; empty work when there is nothing to do."""
        self.adapters.start_step()
        self._copies, self._new_blocks = self.adapters.place_pinned(), []
        budget = self._limits.max_batch_tokens
        work: dict[str, Work] = {}
        for sequence, num_pending in self._decodes_first():
            num_tokens = min(num_pending, budget)
            if num_tokens and self._grow(sequence, num_tokens, work):
                work[sequence.request_id] = Work.of(sequence, num_tokens)
                budget -= num_tokens
        has_place = self._admit_waiting(budget, work)
        if self.adapters.copies_ahead:
            self._place_ahead(has_place)
        # An admitted one with all but a token cached is as a decode. The sort is stable.
        ordered = sorted(work.values(), key=_is_chunk)
        self._is_checked &= not ordered
        return Plan(tuple(ordered), tuple(self._copies), tuple(self._new_blocks))

    def launched(self, work: Work, place: int | None) -> None:
        """Its step is on the way: the next may be planned. place: of the token that it draws among
        the device's last tokens.
        """
        work.sequence.num_computed = work.end
        if place is not None:
            work.sequence.expect(place)

    def computed(self, work: Work) -> None:
        """The work's keys and values are written: let others find full blocks."""
        sequence, num_full = work.sequence, work.end // self.cache.block_size
        if work.is_live and num_full > len(sequence.nodes):
            tokens = sequence.tokens[: work.end]
            self.cache.commit(sequence.namespace, tokens, sequence.blocks, sequence.nodes)
        if work.samples:
            self._waiting.charge_output(sequence)

    def take_back(self, work: Work) -> None:
        """The work drew no token: it is planned again, and what was launched after it is void."""
        work.sequence.take_back()
        if work.is_live:
            work.sequence.num_computed = work.start
            work.sequence.epoch += 1

    def check_at_rest(self) -> None:
        """check_integrity, once after work, when nothing is left: 70 ms with 100,000 KV blocks."""
        if not (self._is_checked or self.num_waiting or self.num_running):
            # Going on with wrong books, one tenant could be given another's blocks.
            self.check_integrity()
            self._is_checked = True

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
        queued = [s for s in self if s.request_id not in self.preparing]
        self._waiting.check_integrity(queued)
        assert self.num_running <= self._limits.max_num_seqs, "too many sequences run"

    def _decodes_first(self) -> list[tuple[Sequence, int]]:
        """What runs, with its pending tokens."""
        running = [(s, s.num_pending) for s in self._running.values() if not s.is_complete]
        decodes = [each for each in running if each[1] <= 1]
        return decodes + [each for each in running if each[1] > 1] if decodes else running

    def _grow(self, sequence: Sequence, num_tokens: int, work: dict[str, Work]) -> bool:
        """Blocks for the next tokens, taken from others by _victim if need be."""
        if sequence.request_id not in self._running:
            return False
        wanted = self.cache.num_blocks_for(sequence.num_computed + num_tokens)
        missing = wanted - len(sequence.blocks)
        if missing <= 0:
            return True
        while missing > self.cache.num_free:
            victim = self._victim()
            self._preempt(victim)
            work.pop(victim.request_id, None)
            if victim is sequence:
                return False
        self._take_blocks(sequence, missing)
        return True

    def _victim(self) -> Sequence:
        """The youngest of the tenant that was served most. Never the oldest sequence that runs: it
        gets on, then it is the next one's turn to be the oldest, so each comes to its end.
        """
        oldest, *others = sorted(self._running.values(), key=lambda s: s.arrival)
        return max(others, key=lambda s: (self._waiting.counter(s), s.arrival), default=oldest)

    def _take_blocks(self, sequence: Sequence, num_blocks: int) -> None:
        blocks = self.cache.allocate(num_blocks)
        assert blocks is not None, "room was checked before"
        sequence.blocks.extend(blocks)
        self._new_blocks.extend(blocks)

    def _preempt(self, sequence: Sequence) -> None:
        """Before its tenant's others, to compute again. The lease stays: slots are not KV."""
        del self._running[sequence.request_id]
        self._release_blocks(sequence)
        sequence.num_computed = 0
        sequence.epoch += 1
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.add_preempted(sequence)

    def _release_blocks(self, sequence: Sequence) -> None:
        self.cache.release(sequence.blocks)
        sequence.blocks = []
        sequence.nodes = []

    def _place_ahead(self, has_place: bool) -> None:
        """Pages for those next in turn, so that their copies run beside steps. has_place: whoever
        is ready would be admitted; else nobody who waits loses his adapter to another who waits.
        """
        has_place = has_place and self.adapters.num_active < self.adapters.max_active
        for digest, is_overdue in self._waiting.unplaced().items():
            if self.adapters.place(digest, only_unclaimed=not (has_place or is_overdue)):
                adapter = self.adapters.find(digest)
                assert adapter is not None
                self._copies.append(adapter)

    def _admit_waiting(self, budget: int, work: dict[str, Work]) -> bool:
        """Whether one more would have been admitted, had anyone been ready."""
        self._waiting.start_step()
        while budget > 0 and self.num_running < self._limits.max_num_seqs:
            sequence = self._waiting.next()
            if sequence is None:
                return True
            needs_adapter = sequence.digest is not None and sequence.slot is None
            num_tokens = self._admit(sequence, budget)
            if num_tokens == 0:
                return False
            work[sequence.request_id] = Work.of(sequence, num_tokens)
            budget -= num_tokens
            self._waiting.admitted(needs_adapter)
        return False

    def _admit(self, sequence: Sequence, budget: int) -> int:
        """Moves the sequence to running if its prompt fits now; the tokens to compute first."""
        if sequence.unknown_at is not None:
            # Preempted when a step was on its way: what is computed again has to be known.
            return 0
        prefix = self.cache.match(sequence.namespace, sequence.sharable)
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
        self._waiting.remove(sequence)
        self._running[sequence.request_id] = sequence
        self._lease(sequence)
        self._count_admission(sequence)
        return num_tokens

    def _lease(self, sequence: Sequence) -> None:
        if sequence.digest is None or sequence.slot is not None:
            return
        adapter = self.adapters.find(sequence.digest)
        assert adapter is not None
        is_miss = adapter.slot is None or adapter.is_fresh
        if self.adapters.lease(sequence.digest):
            self._copies.append(adapter)
        self._waiting.adapter_leased(sequence.digest)
        sequence.slot = adapter.slot
        self.num_adapter_misses += is_miss
        self.num_adapter_hits += not is_miss

    def _count_admission(self, sequence: Sequence) -> None:
        if sequence.is_admitted:
            return
        sequence.is_admitted = True
        sequence.num_cached = sequence.num_computed
        self.num_prompt_tokens += len(sequence.request.token_ids)
        self.num_cached_tokens += sequence.num_cached
        self._waiting.charge_prompt(sequence.num_pending, sequence)
        waited_s = time.monotonic() - sequence.arrived_s
        self.queue_times.count(sequence.request.weight, waited_s)


def _is_chunk(work: Work) -> bool:
    return work.num_tokens > 1
