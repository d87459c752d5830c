"""Whose turn it is: weighted fair queueing over tenants, then over each tenant's adapters.

By virtual token counters (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024). A
counter is the service received, divided by the weight; the lowest has the next turn. Who comes back
from idle is lifted to the lowest counter of those that wait, so credit is not hoarded. A tenant's
adapters share its turns by counters of their own; requests of one adapter go by arrival.

Counters only grow, so a place in the order is put right when it comes to the front, not at every
token: charging is O(1), a turn O(log n), whatever waits.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count, islice
from typing import Generic, TypeVar

from inference.sequence import Sequence

# Of idle ones that are ahead of the others, more than this many are not remembered.
MAX_REMEMBERED = 1024

Order = tuple[float, int, float, int]


class Lane(IntEnum):
    """What a queue waits for beside its turn.

    BASE: nothing. LEASED: nothing, others hold its adapter on the device. UNLEASED: room for its
    adapter on the device. AWAY: its adapter's bytes; who only waits for those is not active.
    """

    BASE = 0
    LEASED = 1
    UNLEASED = 2
    AWAY = 3


ACTIVE = (Lane.BASE, Lane.LEASED, Lane.UNLEASED)


class Member:
    """A party to turns. num_live: its sequences in the engine, waiting or admitted."""

    def __init__(self, key: Hashable, number: int) -> None:
        self.key = key
        self.number = number
        self.weight = 1.0
        self.counter = 0.0
        self.num_live = 0
        # The counter under which it stands in each lane; at most the counter.
        self.places: dict[Lane, float] = {}

    @property
    def is_active(self) -> bool:
        return len(self.places) > (Lane.AWAY in self.places)


M = TypeVar("M", bound=Member)


class Turns(Generic[M]):
    """Members by counter, lane by lane; a member may stand in several lanes."""

    def __init__(self) -> None:
        self.members: dict[Hashable, M] = {}
        self._lanes: tuple[list[tuple[float, int, M]], ...] = ([], [], [], [])
        self._floor = 0.0
        self._ahead: list[tuple[float, int, M]] = []

    def lowest(self) -> float:
        """The lowest counter of the active; of the last of them when there are none. Only grows."""
        firsts = [self._settled(lane, 0).counter for lane in ACTIVE if self._lanes[lane]]
        return min(firsts, default=self._floor)

    def first(self, lane: Lane) -> M | None:
        entries = self._lanes[lane]
        if not entries:
            return None
        place, _, member = entries[0]
        return member if place == member.counter else self._settled(lane, 0)

    def in_order(self, lane: Lane) -> Iterator[M]:
        """Members of the lane, lowest counter first; nothing may join or leave meanwhile."""
        for index in range(len(self._lanes[lane])):
            yield self._settled(lane, index)

    def join(self, member: M, lane: Lane) -> None:
        if lane in member.places:
            return
        if lane is not Lane.AWAY and not member.is_active:
            member.counter = max(member.counter, self.lowest())
        self._place(member, lane)

    def leave(self, member: M, lane: Lane) -> None:
        if lane not in member.places:
            return
        entries = self._lanes[lane]
        del entries[bisect_left(entries, (member.places.pop(lane), member.number))]
        base, leased, unleased, _ = self._lanes
        if lane is not Lane.AWAY and not (base or leased or unleased):
            self._floor = max(self._floor, member.counter)

    def retire(self, member: M) -> None:
        """Nothing of it is left in the engine: forgotten, unless it is ahead of the others."""
        lowest = self.lowest()
        heappush(self._ahead, (member.counter, member.number, member))
        while self._ahead:
            counter, _, idle = self._ahead[0]
            if counter > lowest and len(self._ahead) <= MAX_REMEMBERED:
                return
            heappop(self._ahead)
            if idle.num_live == 0 and idle.counter == counter:
                self.members.pop(idle.key, None)

    def check_integrity(self) -> None:
        for lane, entries in zip(Lane, self._lanes, strict=True):
            assert entries == sorted(entries, key=lambda e: e[:2]), "a lane is out of order"
            standing = {key for key, member in self.members.items() if lane in member.places}
            assert {e[2].key for e in entries} == standing, "a member is lost or forgotten"
            assert len(entries) == len(standing), "a member stands twice in a lane"
            assert all(e[0] == e[2].places[lane] <= e[2].counter for e in entries)

    def _place(self, member: M, lane: Lane) -> None:
        member.places[lane] = member.counter
        insort(self._lanes[lane], (member.counter, member.number, member))

    def _settled(self, lane: Lane, index: int) -> M:
        """The member at index, after those whose counters have grown past it have moved on."""
        entries = self._lanes[lane]
        place, _, member = entries[index]
        while place < member.counter:
            del entries[index]
            self._place(member, lane)
            place, _, member = entries[index]
        return member


class Queue(Member):
    """The waiting sequences of one tenant for one adapter, or for the base, by arrival."""

    def __init__(self, digest: str | None, number: int, tenant: "Tenant") -> None:
        super().__init__(digest, number)
        self.tenant = tenant
        self.digest = digest
        self.waiting: OrderedDict[str, Sequence] = OrderedDict()

    @property
    def head(self) -> Sequence:
        return next(iter(self.waiting.values()))

    @property
    def order(self) -> Order:
        """Sorts queues by turn: the tenant's counter, then the adapter's; ties by first arrival."""
        return (self.tenant.counter, self.tenant.number, self.counter, self.number)


class Tenant(Member):
    def __init__(self, name: str, number: int) -> None:
        super().__init__(name, number)
        self.queues: Turns[Queue] = Turns()


class FairQueue:
    """All waiting sequences, and the counters of all in the engine.

    enter and end are called once for each sequence; add puts it in line, remove takes it out.
    """

    def __init__(self) -> None:
        self._tenants: Turns[Tenant] = Turns()
        self._lane_by_digest: dict[str | None, Lane] = {None: Lane.BASE}
        # The queues of an adapter that have somebody waiting.
        self._queues: dict[str | None, dict[Queue, None]] = {}
        self._numbers = count()

    def enter(self, sequence: Sequence) -> None:
        """Its tenant's weight is this request's from now on."""
        queue = self._queue(sequence.request.tenant, sequence.digest)
        queue.tenant.weight = sequence.request.weight
        queue.num_live += 1
        queue.tenant.num_live += 1

    def end(self, sequence: Sequence) -> None:
        queue = self.queue_of(sequence)
        queue.num_live -= 1
        queue.tenant.num_live -= 1
        if queue.num_live == 0:
            queue.tenant.queues.retire(queue)
        if queue.tenant.num_live == 0:
            self._tenants.retire(queue.tenant)

    def add(self, sequence: Sequence, lane: Lane) -> None:
        """At the end of its queue. lane: of its adapter, as move would be told now."""
        queue = self.queue_of(sequence)
        queue.waiting[sequence.request_id] = sequence
        self._queues.setdefault(queue.digest, {})[queue] = None
        self.move(queue.digest, lane)
        self._join(queue, lane)

    def remove(self, sequence: Sequence) -> None:
        queue = self.queue_of(sequence)
        del queue.waiting[sequence.request_id]
        if queue.waiting:
            return
        self._leave(queue, self._lane_by_digest[queue.digest])
        del self._queues[queue.digest][queue]
        if not self._queues[queue.digest] and queue.digest is not None:
            del self._queues[queue.digest], self._lane_by_digest[queue.digest]

    def move(self, digest: str | None, lane: Lane) -> None:
        """What this adapter's sequences wait for has changed; nothing if none of them waits."""
        if digest not in self._queues:
            return
        was = self._lane_by_digest.get(digest, lane)
        self._lane_by_digest[digest] = lane
        for queue in self._queues[digest] if was is not lane else ():
            # Before it leaves: a tenant that stays active keeps its counter.
            self._join(queue, lane)
            self._leave(queue, was)

    def waits(self, digest: str | None) -> bool:
        return bool(self._queues.get(digest))

    def of_adapter(self, digest: str) -> list[Sequence]:
        """Everything that waits for this adapter."""
        return [s for queue in self._queues.get(digest, ()) for s in queue.waiting.values()]

    def first(self, lane: Lane) -> Queue | None:
        """The lane's queue whose turn is next."""
        tenant = self._tenants.first(lane)
        return None if tenant is None else tenant.queues.first(lane)

    def in_order(self, lane: Lane, max_queues: int | None = None) -> Iterator[Queue]:
        """The lane's queues in the order of turns; max_queues of one tenant."""
        for tenant in self._tenants.in_order(lane):
            yield from islice(tenant.queues.in_order(lane), max_queues)

    def queue_of(self, sequence: Sequence) -> Queue:
        """The queue of a sequence between enter and end, also while it does not wait."""
        return self._tenants.members[sequence.request.tenant].queues.members[sequence.digest]

    def charge(self, sequence: Sequence, units: int) -> None:
        """Service that its tenant and, within it, its adapter received."""
        queue = self.queue_of(sequence)
        queue.tenant.counter += units / queue.tenant.weight
        queue.counter += units

    def check_integrity(self, live: list[Sequence], waiting: list[Sequence]) -> None:
        """Raises AssertionError unless queues, lanes and counts agree with the sequences."""
        self._tenants.check_integrity()
        queues = [q for t in self._tenants.members.values() for q in t.queues.members.values()]
        for tenant in self._tenants.members.values():
            tenant.queues.check_integrity()
            assert tenant.num_live == sum(s.request.tenant == tenant.key for s in live)
            lanes = {lane for queue in tenant.queues.members.values() for lane in queue.places}
            assert set(tenant.places) == lanes, "a tenant is not where its queues are"
        assert sum(queue.num_live for queue in queues) == len(live), "a sequence is not counted"
        lined_up = [s for queue in queues for s in queue.waiting.values()]
        assert {id(s) for s in lined_up} == {id(s) for s in waiting}, "a sequence is lost"
        for queue in queues:
            lanes = {self._lane_by_digest[queue.digest]} if queue.waiting else set()
            assert set(queue.places) == lanes, "a queue is in the wrong lane"

    def _queue(self, tenant_name: str, digest: str | None) -> Queue:
        tenant = self._tenants.members.get(tenant_name)
        if tenant is None:
            tenant = Tenant(tenant_name, next(self._numbers))
            self._tenants.members[tenant_name] = tenant
        queue = tenant.queues.members.get(digest)
        if queue is None:
            queue = Queue(digest, next(self._numbers), tenant)
            tenant.queues.members[digest] = queue
        return queue

    def _join(self, queue: Queue, lane: Lane) -> None:
        self._tenants.join(queue.tenant, lane)
        queue.tenant.queues.join(queue, lane)

    def _leave(self, queue: Queue, lane: Lane) -> None:
        queue.tenant.queues.leave(queue, lane)
        if queue.tenant.queues.first(lane) is None:
            self._tenants.leave(queue.tenant, lane)
