"""Who waits how long for whom: the bound in the scheduler's docstring, shares, lifting."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference import fair_queue
from inference.sequence import Sequence
from tests.inference.scheduling import Machine, cost

SLOTS = 3


@dataclass
class Waits:
    """For each request that found nothing of its tenant waiting: what others got meanwhile."""

    machine: Machine
    before: dict[str, dict[str, int]] = field(default_factory=dict)
    waited: list[tuple[Sequence, dict[str, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine.on_admission = self._admitted

    def submit(self, tenant: str, prompt: int, output: int, weight: float) -> Sequence:
        waiting = {s.request.tenant for s in self.machine.scheduler if not s.num_computed}
        sequence = self.machine.submit(tenant, prompt, output, weight=weight)
        if tenant not in waiting:
            self.before[sequence.request_id] = dict(self.machine.served)
        return sequence

    def _admitted(self, sequence: Sequence) -> None:
        before = self.before.pop(sequence.request_id, None)
        if before is not None:
            tenant = sequence.request.tenant
            served = self.machine.served.items()
            self.waited.append(
                (sequence, {t: n - before.get(t, 0) for t, n in served if t != tenant})
            )


def bound(weight: float, own: int, others: dict[str, tuple[float, int, int]]) -> float:
    """The scheduler's, summed over the others: (weight, longest prompt, dearest request) of each.

    own: what the tenant's dearest request costs, times as many as run at once.
    """
    return sum(w / weight * own + prompt + SLOTS * dear for w, prompt, dear in others.values())


@dataclass(frozen=True)
class Client:
    """One request in the engine at a time; pause: steps between an end and the next request."""

    prompt: int
    output: int
    weight: float
    pause: int


CLIENTS = st.lists(
    st.builds(
        Client,
        prompt=st.integers(1, 12),
        output=st.integers(1, 6),
        weight=st.sampled_from([0.5, 1.0, 2.0]),
        pause=st.integers(0, 8),
    ),
    min_size=1,
    max_size=3,
)
FLOOD = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 6)), min_size=5, max_size=120)


def play(
    clients: list[Client], flood: list[tuple[int, int]], start: int, tenant_of: dict[str, str]
) -> tuple[Waits, int]:
    """The flood comes whole at the step start. Returns the waits and the dearest request."""
    machine = Machine(max_num_seqs=SLOTS, max_batch_tokens=12)
    waits = Waits(machine)
    due = {f"c{number}": 0 for number in range(len(clients))}
    current: dict[str, Sequence] = {}
    dearest = 0
    for now in range(140):
        for prompt, output in flood if now == start else []:
            dearest = max(dearest, prompt + 2 * output)
            waits.submit(tenant_of.get("flood", "flood"), prompt, output, 1.0)
        for (name, at), client in zip(list(due.items()), clients, strict=True):
            if name in current and current[name] in machine.ended:
                del current[name]
                due[name] = at = now + client.pause
            if name not in current and now >= at:
                tenant = tenant_of.get(name, name)
                sent = waits.submit(tenant, client.prompt, client.output, client.weight)
                current[name] = sent
        machine.step()
    machine.drain()
    return waits, dearest


@settings(deadline=None, max_examples=120)
@given(clients=CLIENTS, flood=FLOOD, start=st.integers(0, 20))
def test_a_flood_never_raises_a_tenants_wait_past_the_bound(
    clients: list[Client], flood: list[tuple[int, int]], start: int
) -> None:
    waits, dearest = play(clients, flood, start, {})
    facts = {
        f"c{i}": (c.weight, c.prompt, c.prompt + 2 * c.output) for i, c in enumerate(clients)
    } | {"flood": (1.0, max(p for p, _ in flood), dearest)}
    checked = 0
    for sequence, served in waits.waited:
        tenant = sequence.request.tenant
        if tenant == "flood":
            continue
        others = {name: fact for name, fact in facts.items() if name != tenant}
        # One request at a time: nothing ran beside its last.
        own = cost(sequence)
        assert sum(served.values()) <= bound(facts[tenant][0], own, others)
        checked += 1
    assert checked >= len(clients)


def test_the_bound_would_not_hold_by_arrival_alone() -> None:
    """The same play with everyone in one tenant's queue: the bound says something."""
    client, flood = Client(4, 2, 1.0, 5), [(12, 6)] * 100
    limit = bound(1.0, 8, {"flood": (1.0, 12, 24)})
    waits, _ = play([client], flood, 3, {})
    fair = [sum(n.values()) for s, n in waits.waited if s.request.tenant == "c0"]
    assert len(fair) > 10 and max(fair) <= limit
    alone = Machine(max_num_seqs=SLOTS, max_batch_tokens=12)
    for prompt, output in flood:
        alone.submit("all", prompt, output)
    last = alone.submit("all", 4, 2)
    while not last.is_admitted:
        alone.step()
    assert alone.served["all"] > 10 * limit


def keep_busy(machine: Machine, tenant: str = "busy") -> None:
    """More waiting than can run."""
    while sum(s.request.tenant == tenant for s in machine.scheduler) < 2 * SLOTS:
        machine.submit(tenant, 3, 3)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_shares_are_as_the_weights(weight: float) -> None:
    """Both always have something waiting; their requests are unlike in every way."""
    machine = Machine(max_num_seqs=SLOTS)
    while machine.served.total() < 20_000:
        for tenant, prompt, output, own in (("a", 10, 2, 1.0), ("b", 1, 7, weight)):
            if sum(s.request.tenant == tenant for s in machine.scheduler) < 8:
                machine.submit(tenant, prompt, output, weight=own)
        machine.step()
    assert machine.served["b"] / machine.served["a"] == pytest.approx(weight, rel=0.03)


def test_who_returns_from_idle_gets_its_share_and_no_credit_for_the_time_away() -> None:
    machine = Machine(max_num_seqs=SLOTS)
    machine.submit("idle")
    machine.drain()
    while machine.served["busy"] < 3_000:
        keep_busy(machine)
        machine.step()
    was = dict(machine.served)
    while machine.served.total() - sum(was.values()) < 3_000:
        for tenant in ("idle", "busy"):
            keep_busy(machine, tenant)
        machine.step()
    gained = {tenant: machine.served[tenant] - was[tenant] for tenant in was}
    assert gained["idle"] == pytest.approx(gained["busy"], rel=0.05)


@pytest.mark.parametrize("counted_only_while_waiting", [True, False])
def test_who_asks_for_little_at_a_time_hoards_nothing(counted_only_while_waiting: bool) -> None:
    """Always something running, so never quite idle, and far below its share: then it floods."""
    machine = Machine(max_num_seqs=SLOTS)
    current: Sequence | None = None
    while machine.served["busy"] < 3_000:
        keep_busy(machine)
        if current is None or current in machine.ended:
            current = machine.submit("little", 1, 40 if counted_only_while_waiting else 1)
        machine.step()
    was = dict(machine.served)
    for _ in range(500):
        machine.submit("little", 3, 3)
    while machine.served.total() - sum(was.values()) < 3_000:
        keep_busy(machine)
        machine.step()
    gained = {tenant: machine.served[tenant] - was[tenant] for tenant in was}
    assert gained["little"] <= 1.1 * gained["busy"]


def test_adapters_of_one_tenant_share_its_turns() -> None:
    """One adapter has 200 requests waiting; the other's come one by one, the base's too."""
    machine = Machine(max_num_seqs=SLOTS)
    loud, quiet = machine.adapter("loud"), machine.adapter("quiet")
    for _ in range(200):
        machine.submit("a", 4, 4, loud)
    for number in range(30):
        digest = None if number % 2 else quiet
        sequence = machine.submit("a", 4, 4, digest)
        before = machine.served_by_adapter[loud]
        while sequence not in machine.ended:
            machine.step()
        # Three requests that ran when it came, one more of each of the others, the step at hand.
        assert machine.served_by_adapter[loud] - before <= (SLOTS + 2) * 12 + 16
    assert len(machine.ended) < 200


def test_a_tenants_many_adapters_are_one_tenant() -> None:
    machine = Machine(max_num_seqs=SLOTS, max_active=30, num_pages=30)
    many = [machine.adapter(f"m{number}") for number in range(20)]
    for _ in range(12):
        for digest in many:
            machine.submit("many", 4, 4, digest)
    for _ in range(12 * len(many)):
        machine.submit("one", 4, 4)
    while machine.served.total() < 2_000:
        machine.step()
    assert machine.served["many"] == pytest.approx(machine.served["one"], rel=0.05)


def test_a_flood_of_adapters_does_not_keep_another_tenants_from_its_turn() -> None:
    """Room for two adapters; one tenant wants forty of them, many times."""
    machine = Machine(max_num_seqs=SLOTS, max_active=2, num_pages=2)
    for number in range(40):
        digest = machine.adapter(f"m{number}")
        for _ in range(5):
            machine.submit("many", 4, 4, digest)
    mine = machine.adapter("mine")
    waits = []
    for _ in range(6):
        sequence = machine.submit("one", 4, 4, mine)
        before = len(machine.ended)
        while sequence not in machine.ended:
            machine.step()
        waits.append(len(machine.ended) - before)
    assert max(waits) <= 2 * SLOTS + 2


def test_idle_tenants_are_forgotten_and_those_ahead_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_queue, "MAX_REMEMBERED", 10)
    machine = Machine()
    for number in range(100):
        machine.submit(f"t{number}")
        machine.drain()
    assert len(machine.scheduler._waiting._queue._tenants.members) <= 10


def test_equal_tenants_take_turns_one_by_one() -> None:
    machine = Machine(max_num_seqs=1)
    for tenant in "abc":
        for _ in range(4):
            machine.submit(tenant)
    machine.drain()
    assert "".join(s.request.tenant for s in machine.ended) == "abc" * 4
