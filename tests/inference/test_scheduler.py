"""What is planned: order, adapters that are not ready, preemption; and that all come to an end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from inference import waiting
from inference.sequence import Sequence
from inference.waiting import MAX_PASSED
from tests.inference.scheduling import Machine


def test_it_works() -> None:
    machine = Machine(max_batch_tokens=8)
    machine.submit("a", prompt=6, output=3)
    late = machine.submit("a", prompt=9, output=1)
    assert [(w.start, w.num_tokens) for w in machine.step().work] == [(0, 6), (0, 2)]
    # The decode comes first, then the prefill in progress.
    assert [(w.start, w.num_tokens) for w in machine.step().work] == [(6, 1), (2, 7)]
    machine.drain()
    assert late.num_output == 1 and len(machine.ended) == 2


def test_requests_of_one_tenant_and_adapter_go_by_arrival() -> None:
    machine = Machine(max_num_seqs=1)
    sent = [machine.submit("a", output=1 + i % 3) for i in range(9)]
    machine.drain()
    assert machine.ended == sent


def passed_over(machine: Machine) -> Sequence:
    """A request whose adapter has no room, as three of a heavy tenant hold the only place; they
    end one after the other, so the place is never free between them.
    """
    a, b = machine.adapter("a"), machine.adapter("b")
    for output in (3, 5, 7):
        machine.submit("loud", output=output, digest=a, weight=1000.0)
    machine.step()
    return machine.submit("quiet", digest=b)


def test_an_adapter_without_room_is_passed_over_and_not_for_ever() -> None:
    machine = Machine(max_num_seqs=3, max_active=1)
    blocked = passed_over(machine)
    for _ in range(400):
        machine.submit("loud", digest="a", weight=1000.0)
        machine.step()
    after = [s for s in machine.admitted if s.digest == "a" and s.arrival > blocked.arrival]
    assert blocked.num_passed == MAX_PASSED and blocked in machine.ended
    assert machine.admitted.index(blocked) == machine.admitted.index(after[MAX_PASSED]) - 1
    machine.drain()


def test_the_base_goes_on_while_an_adapters_place_is_cleared() -> None:
    machine = Machine(max_num_seqs=3, max_active=1)
    blocked = passed_over(machine)
    while blocked.num_passed < MAX_PASSED:
        machine.submit("loud", digest="a", weight=1000.0)
        machine.step()
    base = machine.submit("other")
    machine.submit("loud", digest="a", weight=1000.0)
    machine.drain()
    assert machine.admitted.index(base) < machine.admitted.index(blocked)


def test_base_and_other_adapters_go_on_while_one_is_read_from_disk() -> None:
    machine = Machine(max_num_seqs=2)
    away, here = machine.adapter("away", on_host=False), machine.adapter("here")
    blocked = [machine.submit("a", digest=away) for _ in range(3)]
    others = [machine.submit("a"), machine.submit("a", digest=here)]
    assert list(machine.scheduler.waiting_for_host()) == [away]
    assert machine.scheduler.waiting_for_host()[away] == blocked
    while any(s not in machine.ended for s in others):
        machine.step()
    assert not machine.step().work and not any(s.is_admitted for s in blocked)
    machine.arrive(away)
    assert machine.scheduler.waiting_for_host() == {}
    machine.drain()
    assert blocked == machine.ended[-3:]


def test_only_so_many_adapters_are_read_at_once_and_no_tenant_fills_them() -> None:
    machine = Machine(num_pages=200, max_active=200)
    for number in range(100):
        machine.submit("loud", digest=machine.adapter(f"l{number}", on_host=False))
    machine.submit("quiet", digest=machine.adapter("q", on_host=False))
    asked = list(machine.scheduler.waiting_for_host())
    assert len(asked) == waiting.MAX_READS_OF_TENANT + 1 and "q" in asked


def test_an_adapter_that_lost_its_bytes_while_it_waited_is_asked_for_again() -> None:
    machine = Machine(max_num_seqs=1)
    name = machine.adapter("x")
    machine.submit("a", output=8)
    machine.step()
    lost = machine.submit("a", digest=name)
    adapter = machine.pool.find(name)
    assert adapter is not None
    machine.pool._host.leave(adapter)
    while machine.step().work:
        pass
    assert list(machine.scheduler.waiting_for_host()) == [name]
    machine.arrive(name)
    machine.drain()
    assert lost in machine.ended


def test_the_tenant_served_most_is_preempted_and_not_the_oldest() -> None:
    machine = Machine(num_blocks=13, max_batch_tokens=64)
    oldest = machine.submit("loud", prompt=8, output=12)
    young = [machine.submit("loud", prompt=8, output=12) for _ in range(2)]
    machine.step()
    quiet = machine.submit("quiet", prompt=8, output=12)
    machine.drain()
    assert young[1].num_preemptions >= 1
    assert oldest.num_preemptions == 0
    # Younger than all of the loud tenant's, and let alone.
    assert quiet.num_preemptions == 0


def test_a_preempted_sequence_keeps_its_lease_and_stands_before_its_tenants_others() -> None:
    machine = Machine(num_blocks=9, max_num_seqs=2)
    name = machine.adapter("x")
    machine.submit("a", prompt=8, output=16)
    second = machine.submit("a", prompt=8, output=16, digest=name)
    while not second.num_preemptions:
        machine.step()
    third = machine.submit("a", prompt=1, output=1)
    assert second.slot is not None and second in list(machine.scheduler)
    while not third.is_admitted:
        assert second.num_computed or second.slot is not None
        machine.step()
    assert second.num_computed
    machine.drain()
    assert len(machine.ended) == 3


def test_an_aborted_sequence_leaves_nothing_wherever_it_stood() -> None:
    machine = Machine(num_blocks=9, max_num_seqs=2, max_active=1)
    x, y = machine.adapter("x"), machine.adapter("y")
    away = machine.adapter("away", on_host=False)
    sent = [machine.submit("a", 8, 16, digest) for digest in (None, x, y, away, None)]
    while not sent[1].num_preemptions:
        machine.step()
    for sequence in sent:
        machine.scheduler.finish(sequence)
        machine.scheduler.check_integrity()
    assert not machine.step().work and machine.scheduler.num_waiting == 0
    assert machine.scheduler.cache.num_free == machine.scheduler.cache.num_usable


Arrival = tuple[int, str, int, int, str | None]
ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.sampled_from("abc"),
        st.integers(1, 12),
        st.integers(1, 10),
        st.sampled_from([None, None, "x", "y", "z"]),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=150)
@given(
    arrivals=ARRIVALS,
    num_blocks=st.integers(8, 40),
    max_active=st.integers(1, 3),
    max_num_seqs=st.integers(1, 5),
    aborts=st.lists(st.integers(0, 40), max_size=5),
)
def test_the_engine_never_idles_with_admissible_work_and_every_request_ends(
    arrivals: list[Arrival], num_blocks: int, max_active: int, max_num_seqs: int, aborts: list[int]
) -> None:
    """Whatever comes, with little memory and room for few adapters. The books after every step."""
    machine = Machine(max_num_seqs, 16, num_blocks, max_active, num_pages=3)
    for name in "xyz":
        machine.adapter(name)
    sent: list[Sequence] = []
    arrivals = sorted(arrivals, key=lambda a: a[0])
    aborted = 0
    for now in range(31):
        for _, tenant, prompt, output, digest in (a for a in arrivals if a[0] == now):
            sent.append(machine.submit(tenant, prompt, output, digest))
        for number in aborts:
            if number < len(sent) and now == number % 31 and sent[number] in machine.scheduler:
                machine.scheduler.finish(sent[number])
                aborted += 1
        has_work = bool(machine.scheduler.num_waiting or machine.scheduler.num_running)
        assert bool(machine.step().work) == has_work
    machine.drain()
    assert len(machine.ended) + aborted == len(sent)
    assert len({s.request_id for s in machine.ended}) == len(machine.ended)
    assert machine.scheduler.cache.num_free == machine.scheduler.cache.num_usable
