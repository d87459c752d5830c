"""Residency in any order of events: the pool against a model of what must hold, by hypothesis."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from inference.adapter import Adapter, Placement
from inference.adapter_pool import AdapterPool
from inference.errors import EngineError

NUM_PAGES, NUM_HOST_PAGES, MAX_ACTIVE = 5, 8, 3
NUMBERS = st.integers(min_value=0, max_value=7)
PICKS = st.integers(min_value=0, max_value=1 << 30)


class PoolMachine(RuleBasedStateMachine):
    """Plays loader, scheduler and copies. Content is a model of memory: page → who was written."""

    copies_ahead = False

    def __init__(self) -> None:
        super().__init__()
        self.pool = AdapterPool(NUM_PAGES, MAX_ACTIVE, NUM_HOST_PAGES, self.copies_ahead)
        self.claims: Counter[str] = Counter()
        self.leases: Counter[str] = Counter()
        self.expected: list[Adapter] = []
        self.reading: list[Adapter] = []
        self.compiling: list[Adapter] = []
        # In the order of the copy stream, with the pages that were read and written.
        self.copying: list[tuple[Adapter, tuple[int, ...], tuple[int, ...]]] = []
        self.host: dict[int, str] = {}
        self.device: dict[int, str] = {}
        # The plan after which a page, or a slot (negative), was last leased.
        self.last_plan: dict[int, int] = {}
        self.num_plans = 0

    @initialize()
    def start(self) -> None:
        for number in range(6):
            self.load(number)
            self.end_load(0, True)
            self.ask(number)

    # What load(), fetches and the writer of compiled files do.

    @rule(number=NUMBERS)
    def load(self, number: int) -> None:
        """A first load to its end; a second name for what is known."""
        digest = f"d{number}"
        adapter = self.pool.find(digest)
        if adapter is None:
            size = 1 + number % 3
            adapter = Adapter(digest, "", 8 * size, size, size)
            if self.pool.expect(adapter):
                self._written(adapter, arrived=True)
            self.expected.append(adapter)
            return
        if adapter.names or adapter not in self.expected:
            self.pool.register(f"n{number}.{len(adapter.names)}", adapter)

    @rule(pick=PICKS, has_name=st.booleans())
    @precondition(lambda self: self.expected)
    def end_load(self, pick: int, has_name: bool) -> None:
        adapter = self.expected.pop(pick % len(self.expected))
        if has_name:
            self.pool.register(f"n{adapter.digest[1:]}.{len(adapter.names)}", adapter)
        self._gone(self.pool.forget(adapter))

    @rule(number=NUMBERS)
    def fetch(self, number: int) -> None:
        adapter = self.pool.find(f"d{number}")
        if adapter is None or adapter.on_host or adapter.is_reading:
            return
        if self.pool.start_read(adapter):
            self._check_nobody_uses(adapter.host_pages, {})
            self.reading.append(adapter)

    @rule(pick=PICKS, arrived=st.booleans())
    @precondition(lambda self: self.reading)
    def end_fetch(self, pick: int, arrived: bool) -> None:
        self._written(self.reading.pop(pick % len(self.reading)), arrived)

    @rule(number=NUMBERS)
    def compile(self, number: int) -> None:
        adapter = self.pool.find(f"d{number}")
        if adapter is not None and adapter.on_host:
            self.pool.use_host(adapter)
            self.compiling.append(adapter)

    @rule(pick=PICKS)
    @precondition(lambda self: self.compiling)
    def end_compile(self, pick: int) -> None:
        adapter = self.compiling.pop(pick % len(self.compiling))
        assert {self.host[page] for page in adapter.host_pages} == {adapter.digest}
        adapter.is_compiled = True
        self._gone(self.pool.done_with_host(adapter))

    # What people do.

    @rule(number=NUMBERS)
    def pin(self, number: int) -> None:
        adapter = self.pool.find(f"d{number}")
        if adapter is None or not adapter.names or adapter.pinned:
            return
        pinned = [a for a in self.pool if a.pinned]
        try:
            self.pool.pin(adapter)
        except EngineError:
            largest = max(a.num_pages for a in self.pool)
            room = NUM_PAGES - sum(a.num_pages for a in pinned) - adapter.num_pages
            assert room < largest

    @rule(number=NUMBERS)
    def unpin(self, number: int) -> None:
        adapter = self.pool.find(f"d{number}")
        if adapter is not None and adapter.names:
            self.pool.unpin(adapter)

    @rule(number=NUMBERS)
    def unload(self, number: int) -> None:
        adapter = self.pool.find(f"d{number}")
        if adapter is not None and adapter.names:
            name = min(adapter.names)
            self._gone(self.pool.unbind(name))
            assert self.pool.resolve(name) is None

    # What the scheduler does.

    @rule()
    def plan(self) -> None:
        self.pool.start_step()
        self.num_plans += 1

    @rule(number=NUMBERS)
    def ask(self, number: int) -> None:
        adapter = self.pool.find(f"d{number}")
        if adapter is not None and adapter.names:
            self.pool.claim(adapter.digest)
            self.claims[adapter.digest] += 1

    @rule(pick=PICKS)
    @precondition(lambda self: +(self.claims - self.leases))
    def give_up(self, pick: int) -> None:
        self._unclaim(self._waiting(pick))

    @rule(pick=PICKS)
    @precondition(lambda self: +(self.claims - self.leases))
    def admit(self, pick: int) -> None:
        digest = self._waiting(pick)
        if self.pool.placement(digest) is not Placement.READY:
            return
        adapter = self.pool.find(digest)
        assert adapter is not None
        must_copy = self.pool.lease(digest)
        assert not (must_copy and self.copies_ahead)
        self.leases[digest] += 1
        if must_copy:
            self._start_copy(adapter)
            self.finish_copy()
        assert {self.device[page] for page in adapter.pages} == {digest}, "another's weights"

    @rule(pick=PICKS, only_unclaimed=st.booleans())
    @precondition(lambda self: self.copies_ahead and +(self.claims - self.leases))
    def place(self, pick: int, only_unclaimed: bool) -> None:
        digest = self._waiting(pick)
        wanted = {d for d in +self.claims if self._is_placed(d)}
        if self.pool.place(digest, only_unclaimed):
            adapter = self.pool.find(digest)
            assert adapter is not None
            self._start_copy(adapter)
            assert self.pool.placement(digest) is Placement.COPYING
            assert not only_unclaimed or all(self._is_placed(d) for d in wanted)

    @rule()
    def place_pinned(self) -> None:
        for adapter in self.pool.place_pinned():
            self._start_copy(adapter)
            if not self.copies_ahead:
                self.finish_copy()

    @rule(pick=PICKS)
    @precondition(lambda self: +self.leases)
    def end(self, pick: int) -> None:
        digest = sorted(+self.leases)[pick % len(+self.leases)]
        adapter = self.pool.find(digest)
        assert adapter is not None and adapter.slot is not None
        self.last_plan |= dict.fromkeys((*adapter.pages, -1 - adapter.slot), self.num_plans)
        self.pool.release(digest)
        self.leases[digest] -= 1
        self._unclaim(digest)

    # What the device does.

    @rule()
    @precondition(lambda self: self.copying)
    def finish_copy(self) -> None:
        """Copies end in the order of their stream."""
        adapter, sources, targets = self.copying.pop(0)
        assert {self.host[page] for page in sources} == {adapter.digest}, "the source was reused"
        self.device |= dict.fromkeys(targets, adapter.digest)
        self._gone(self.pool.copied(adapter))

    @rule()
    @precondition(lambda self: self.copying and self.copies_ahead)
    def fail_copy(self) -> None:
        """It could not even be started."""
        adapter, _, _ = self.copying.pop()
        self._gone(self.pool.copy_failed(adapter))

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_integrity(+self.claims, +self.leases)

    @invariant()
    def pages_under_way_are_nobody_elses(self) -> None:
        for adapter, sources, targets in self.copying:
            assert adapter.host_pages == sources and adapter.pages == targets
            assert self.pool.find(adapter.digest) is adapter

    def teardown(self) -> None:
        """All comes to rest and nothing is left."""
        while self.copying:
            self.finish_copy()
        while self.reading:
            self.end_fetch(0, True)
        while self.compiling:
            self.end_compile(0)
        while self.expected:
            self.end_load(0, True)
        while +self.leases:
            self.end(0)
        while +self.claims:
            self.give_up(0)
        for adapter in list(self.pool):
            for name in list(adapter.names):
                self.pool.unbind(name)
        assert not list(self.pool)
        self.pool.check_integrity({}, {})

    def _start_copy(self, adapter: Adapter) -> None:
        """Unless it is said to be quiet, the copy waits for all steps that were launched."""
        assert adapter.slot is not None
        places = (*adapter.pages, -1 - adapter.slot)
        last_plan = max(self.last_plan.get(place, -9) for place in places)
        # What was launched by then is over with the second plan after it.
        assert not adapter.is_quiet or self.num_plans >= last_plan + 2
        self._check_nobody_uses((), dict.fromkeys(adapter.pages, adapter))
        self.copying.append((adapter, adapter.host_pages, adapter.pages))

    def _check_nobody_uses(self, host: tuple[int, ...], device: dict[int, Adapter]) -> None:
        for other, sources, targets in self.copying:
            assert not set(sources) & set(host)
            assert all(device.get(page, other) is other for page in targets)

    def _written(self, adapter: Adapter, arrived: bool) -> None:
        self.host |= dict.fromkeys(adapter.host_pages, adapter.digest)
        self._gone(self.pool.end_read(adapter, arrived))

    def _waiting(self, pick: int) -> str:
        waiting = sorted(+(self.claims - self.leases))
        return waiting[pick % len(waiting)]

    def _unclaim(self, digest: str) -> None:
        self.claims[digest] -= 1
        self._gone(self.pool.unclaim(digest))

    def _is_placed(self, digest: str) -> bool:
        adapter = self.pool.find(digest)
        return adapter is not None and adapter.slot is not None

    def _gone(self, adapter: Adapter | None) -> None:
        if adapter is not None:
            assert not (adapter.names or self.claims[adapter.digest] or adapter in self.expected)
            assert not (adapter.pages or adapter.host_pages)


class AheadMachine(PoolMachine):
    copies_ahead = True


SETTINGS = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


@pytest.mark.parametrize("machine", [PoolMachine, AheadMachine])
def test_the_books_and_the_bytes_agree_in_any_order_of_events(machine: Any) -> None:
    case = machine.TestCase
    case.settings = SETTINGS
    case("runTest").runTest()
