"""Which sequence is admitted next: turns, adapters that are not ready, and those that came back.

In the order of turns (fair_queue.py) a sequence whose adapter has no room on the device, or is on
its way there, is passed over, so base and other adapters' requests go on. After MAX_PASSED
admissions past it nothing that needs an adapter is admitted before it. Bytes that come from disk
hold up nobody but those who wait for them. A preempted sequence stands before its tenant's others;
it holds its adapter's lease.
"""

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

from inference.adapter import Placement
from inference.adapter_pool import AdapterPool
from inference.fair_queue import FairQueue, Lane, Order
from inference.sequence import Sequence

MAX_PASSED = 64
# Sequences without room that one step looks at, and those of one tenant; what is behind waits for
# the next step.
MAX_LOOKS = 32
MAX_LOOKS_OF_TENANT = 4
# Adapters whose bytes are asked for at once, and those of one tenant.
MAX_READS = 64
MAX_READS_OF_TENANT = 8
# Adapters that are brought to the device before their requests can be admitted.
MAX_AHEAD = 16

PROMPT_UNITS = 1
# What an output token costs beside a prompt's, as in the paper and most price lists.
OUTPUT_UNITS = 2


class Waiting:
    def __init__(self, adapters: AdapterPool) -> None:
        self._adapters = adapters
        self._queue = FairQueue()
        self._sequences: dict[str, Sequence] = {}
        self._preempted: dict[str, Sequence] = {}
        self._blocked: dict[str, Sequence] = {}
        self._overdue: Sequence | None = None
        self._num_arrived = 0

    def __len__(self) -> int:
        return len(self._sequences) + len(self._preempted)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._preempted.values()
        yield from self._sequences.values()

    def __contains__(self, sequence: Sequence) -> bool:
        return self.find(sequence.request_id) is sequence

    def find(self, request_id: str) -> Sequence | None:
        return self._sequences.get(request_id) or self._preempted.get(request_id)

    def add(self, sequence: Sequence) -> None:
        """A new sequence, to the end of its queue; end() is called once for it."""
        self._num_arrived += 1
        sequence.arrival = self._num_arrived
        self._queue.enter(sequence)
        self._sequences[sequence.request_id] = sequence
        self._queue.add(sequence, self._lane(sequence.digest))

    def add_preempted(self, sequence: Sequence) -> None:
        self._preempted[sequence.request_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Takes it out: to run, or because it ends."""
        if self._preempted.pop(sequence.request_id, None) is None:
            del self._sequences[sequence.request_id]
            self._queue.remove(sequence)
            self._blocked.pop(sequence.request_id, None)
        if sequence is self._overdue:
            self._overdue = None

    def end(self, sequence: Sequence) -> None:
        """It has left the engine, after remove() if it waited."""
        self._queue.end(sequence)

    def adapter_leased(self, digest: str) -> None:
        self._queue.move(digest, Lane.LEASED)

    def adapter_moved(self, digest: str) -> None:
        """A lease was given back, or the bytes came or went."""
        if self._queue.waits(digest):
            self._queue.move(digest, self._lane(digest))

    def charge_prompt(self, num_tokens: int, sequence: Sequence) -> None:
        self._queue.charge(sequence, num_tokens * PROMPT_UNITS)

    def charge_output(self, sequence: Sequence) -> None:
        self._queue.charge(sequence, OUTPUT_UNITS)

    def counter(self, sequence: Sequence) -> float:
        """Its tenant's: the weighted service so far."""
        return self._queue.queue_of(sequence).tenant.counter

    def away(self) -> dict[str, list[Sequence]]:
        """Sequences whose adapter has to come from disk first, by its digest, those next in turn
        first; no more than MAX_READS adapters.
        """
        queues = list(islice(self._queue.in_order(Lane.AWAY, MAX_READS_OF_TENANT), MAX_READS))
        digests = dict.fromkeys(queue.digest for queue in queues if queue.digest is not None)
        for digest in digests:
            self.adapter_moved(digest)
        return {d: self._queue.of_adapter(d) for d in digests if self._is_away(d)}

    def unplaced(self) -> dict[str, bool]:
        """Adapters on the host that are next in turn for the device; whether their request is
        overdue. No more than MAX_AHEAD are looked at.
        """
        found = {}
        if self._overdue is not None and self._overdue.digest is not None:
            found[self._overdue.digest] = True
        queues = islice(self._queue.in_order(Lane.UNLEASED, MAX_LOOKS_OF_TENANT), MAX_AHEAD)
        for queue in queues:
            if queue.digest is not None:
                found.setdefault(queue.digest, False)
        for digest in found:
            self.adapter_moved(digest)
        return {d: due for d, due in found.items() if self._needs_pages(d)}

    def start_step(self) -> None:
        """Room only shrinks within a step: who finds none is looked at again in the next."""
        self._blocked.clear()
        if self._overdue is not None and self._overdue.digest is not None:
            # Its bytes may have to come again.
            self.adapter_moved(self._overdue.digest)

    def next(self) -> Sequence | None:
        """Whose turn it is of those whose adapter is ready. Nothing changes until remove()."""
        if self._overdue is not None and self._is_ready(self._overdue):
            return self._overdue
        lanes = (Lane.BASE,) if self._overdue else (Lane.BASE, Lane.LEASED)
        firsts = [queue for lane in lanes if (queue := self._queue.first(lane)) is not None]
        found = [(queue.order, queue.head) for queue in firsts]
        if self._preempted:
            found += [(self._order_preempted(s), s) for s in self._preempted.values()]
        before, best = min(found, key=itemgetter(0), default=(None, None))
        placed = self._first_with_room(before) if self._overdue is None else None
        return placed or best

    def admitted(self, needed_adapter: bool) -> None:
        """What next() returned was admitted. needed_adapter: it had no lease before."""
        if not needed_adapter:
            return
        for sequence in self._blocked.values():
            sequence.num_passed += 1
            if self._overdue is None and sequence.num_passed >= MAX_PASSED:
                self._overdue = sequence

    def check_integrity(self, live: list[Sequence]) -> None:
        """Raises AssertionError unless queues and lanes agree with live: all in the engine."""
        self._queue.check_integrity(live, list(self._sequences.values()))
        assert all(s in self for s in self._blocked.values()), "one that left is blocked"
        assert self._overdue is None or self._overdue in self, "one that left is overdue"
        for sequence in self._sequences.values():
            assert sequence.slot is None, "a lease before admission"

    def _order_preempted(self, sequence: Sequence) -> Order:
        """Before all others of its tenant; the older first."""
        tenant = self._queue.queue_of(sequence).tenant
        return (tenant.counter, tenant.number, -1.0, sequence.arrival)

    def _first_with_room(self, before: Order | None) -> Sequence | None:
        """The first whose adapter can be placed now, of those whose turn is before that one's."""
        while (head := self._next_look(before)) is not None:
            assert head.digest is not None
            placement = self._adapters.placement(head.digest)
            if placement is Placement.READY:
                return head
            if placement is Placement.NOT_ON_HOST:
                self.adapter_moved(head.digest)
            else:
                self._blocked[head.request_id] = head
        return None

    def _next_look(self, before: Order | None) -> Sequence | None:
        """The first not looked at in this step. With the cap reached one look answers for all."""
        is_full = self._adapters.num_active >= self._adapters.max_active
        if len(self._blocked) >= (1 if is_full else MAX_LOOKS):
            return None
        if not self._blocked:
            first = self._queue.first(Lane.UNLEASED)
            return None if first is None or (before and first.order > before) else first.head
        for queue in self._queue.in_order(Lane.UNLEASED, MAX_LOOKS_OF_TENANT):
            if before is not None and queue.order > before:
                return None
            if queue.head.request_id not in self._blocked:
                return queue.head
        return None

    def _is_ready(self, sequence: Sequence) -> bool:
        assert sequence.digest is not None
        return self._adapters.placement(sequence.digest) is Placement.READY

    def _needs_pages(self, digest: str) -> bool:
        adapter = self._adapters.find(digest)
        return adapter is not None and adapter.slot is None and adapter.on_host

    def _is_away(self, digest: str) -> bool:
        return self._adapters.placement(digest) is Placement.NOT_ON_HOST

    def _lane(self, digest: str | None) -> Lane:
        """Where this adapter's queues stand, by the pool."""
        if digest is None:
            return Lane.BASE
        adapter = self._adapters.find(digest)
        assert adapter is not None, "a claimed adapter is in the pool"
        if adapter.num_leases:
            return Lane.LEASED
        return Lane.AWAY if self._is_away(digest) else Lane.UNLEASED
