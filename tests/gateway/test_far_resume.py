"""Generations resumed through another web process than the one that holds them."""

import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tenants.audit import system
from tenants.keys import create_key
from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import Web, start_web, wait_for
from tests.gateway.test_resume import (
    LIMITS,
    WINDOW_S,
    begin,
    cut,
    dialled,
    hear,
    num_running,
    pace,
    refusal,
    resident_bytes,
    say,
    take,
    take_all,
    text_of,
)
from tests.gateway.test_socket_guards import own_store
from tests.services import start_valkey


def start(stack: Stack, **environ: str) -> Web:
    urls = [one.url for one in stack.replicas]
    return start_web(stack.folder, stack.database_url, urls, **LIMITS, **environ)


@pytest.fixture(scope="module")
def webs(running_stack: Stack) -> Iterator[list[Web]]:
    """Several processes of one house."""
    found = [start(running_stack) for _ in range(3)]
    yield found
    for web in found:
        web.stop()


@pytest.fixture
def acme(stack: Stack, webs: list[Web]) -> Customer:
    made = stack.make_customer()
    stack.activate(made, "support-bot")
    return Customer(webs[0], made.tenant, made.api_key)


def left_behind(web: Web, api_key: str, num_frames: int = 3) -> str:
    """A generation whose socket dropped after so many frames."""
    with dialled(web, api_key) as link:
        generation = begin(link)
        take(link, num_frames)
        cut(link)
    return generation


def test_it_works(stack: Stack, acme: Customer, webs: list[Web]) -> None:
    """Each socket is another process's; each is cut while frames are on their way."""
    pace(stack, 100)
    with dialled(webs[0], acme.api_key) as link:
        generation = begin(link)
        frames = take(link, 3)
        cut(link)
    num_sockets = 1
    while frames[-1]["type"] == "chunk":
        with dialled(webs[num_sockets % 3], acme.api_key) as link:
            say(link, type="resume", id="b", generation=generation, after=frames[-1]["seq"])
            assert hear(link) == {"type": "resumed", "id": "b", "generation": generation}
            frames.append(hear(link))
            while frames[-1]["type"] == "chunk" and len(frames) % 9:
                frames.append(hear(link))
            cut(link)
        num_sockets += 1
    assert num_sockets > 9
    assert [one["seq"] for one in frames] == list(range(1, len(frames) + 1))
    assert text_of(frames) == "".join(f"{number} " for number in range(100))
    assert frames[-1]["usage"]["completion_tokens"] == 100
    [row] = acme.usage(1)
    assert (row.status, row.completion_tokens) == ("finished", 100)


def test_frames_are_not_late(stack: Stack, acme: Customer, webs: list[Web]) -> None:
    """What is read over the store comes one by one, as it is made."""
    pace(stack, 100)
    generation = left_behind(webs[0], acme.api_key)
    with dialled(webs[1], acme.api_key) as link:
        say(link, type="resume", id="b", generation=generation, after=3)
        take(link, 10)
        start_at = time.monotonic()
        take(link, 50)
        # 20 ms a token.
        assert 0.8 < time.monotonic() - start_at < 3


def test_what_ended_meanwhile_is_kept(stack: Stack, acme: Customer, webs: list[Web]) -> None:
    pace(stack, 5)
    generation = left_behind(webs[0], acme.api_key)
    acme.usage(1)
    for _ in range(2):
        with dialled(webs[1], acme.api_key) as link:
            say(link, type="resume", id="b", generation=generation, after=3)
            assert take_all(link)[0]["type"] == "resumed"
            assert take_all(link)[-1]["type"] == "done"
            cut(link)


def test_nothing_comes_for_longer_than_a_pull(
    stack: Stack, acme: Customer, webs: list[Web]
) -> None:
    pace(stack, 2, interval_s=2.5)
    generation = left_behind(webs[0], acme.api_key, 1)
    with dialled(webs[1], acme.api_key) as link:
        say(link, type="resume", id="b", generation=generation, after=1)
        assert take_all(link)[0]["type"] == "resumed"
        assert take_all(link)[-1]["type"] == "done"
    assert acme.usage(1)[0].status == "finished"


def test_cancel_reaches_it(stack: Stack, acme: Customer, webs: list[Web]) -> None:
    pace(stack, 1000)
    generation = left_behind(webs[0], acme.api_key)
    with dialled(webs[1], acme.api_key) as link:
        say(link, type="resume", id="b", generation=generation, after=3)
        take(link, 5)
        say(link, type="cancel", id="b")
        assert take_all(link)[-1]["error"]["code"] == "cancelled"
        # The replica hears of it when its connection closes.
        wait_for("the abort", lambda: not num_running(stack))
        say(link, type="ping")
        assert hear(link) == {"type": "pong"}
    assert acme.usage(1)[0].status == "cancelled"


@pytest.mark.parametrize("place", [0, 1])
def test_cancelled_before_it_is_found(
    stack: Stack, acme: Customer, webs: list[Web], place: int
) -> None:
    pace(stack, 1000)
    generation = left_behind(webs[0], acme.api_key)
    with dialled(webs[place], acme.api_key) as link:
        say(link, type="resume", id="b", generation=generation, after=3)
        say(link, type="cancel", id="b")
        assert hear(link)["type"] == "resumed"
        assert take_all(link)[-1]["error"]["code"] == "cancelled"
        # The replica hears of it when its connection closes.
        wait_for("the abort", lambda: not num_running(stack))
    assert acme.usage(1)[0].status == "cancelled"


def test_a_closing_handshake_is_a_goodbye(stack: Stack, acme: Customer, webs: list[Web]) -> None:
    pace(stack, 1000)
    generation = left_behind(webs[0], acme.api_key)
    with dialled(webs[1], acme.api_key) as link:
        say(link, type="resume", id="b", generation=generation, after=3)
        take(link, 5)
    wait_for("the abort", lambda: not num_running(stack), WINDOW_S / 2)
    assert acme.usage(1)[0].status == "cancelled"


def test_the_window_begins_again(stack: Stack, acme: Customer, webs: list[Web]) -> None:
    """Held for as long as somebody reads, for a window more, and no longer."""
    pace(stack, 1000)
    generation = left_behind(webs[0], acme.api_key)
    with dialled(webs[1], acme.api_key) as link:
        say(link, type="resume", id="b", generation=generation, after=3)
        reading = time.monotonic()
        while time.monotonic() < reading + 1.5 * WINDOW_S:
            hear(link)
        cut(link)
    time.sleep(WINDOW_S / 2)
    assert num_running(stack) == 1
    [row] = acme.usage(1)
    assert row.status == "cancelled" and not num_running(stack)


def test_it_is_its_owners_alone(stack: Stack, acme: Customer, webs: list[Web]) -> None:
    """Another tenant, and another key of the same tenant: as one that never was."""
    pace(stack, 200)
    second = create_key(system(acme.tenant.id), "second", ["inference"]).raw
    generation = left_behind(webs[0], acme.api_key)
    absent = generation[:9] + "0" * 32
    for api_key in (stack.make_customer().api_key, second):
        with dialled(webs[1], api_key) as link:
            found = refusal(link, generation)
            assert found == refusal(link, absent)
            assert found["code"] == "generation_not_found"
    with dialled(webs[1], acme.api_key) as link:
        for name in (absent, "web.*", generation + "\n", generation.upper()):
            assert refusal(link, name) == found
        error = refusal(link, generation, 10_000)
        assert (error["code"], error["param"]) == ("frames_not_kept", "after")
        say(link, type="resume", id="b", generation=generation, after=3)
        assert hear(link)["type"] == "resumed"
        assert take_all(link)[-1]["type"] == "done"


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (1, 2)])
def test_the_newer_reader_takes_over(
    stack: Stack, acme: Customer, webs: list[Web], first: int, second: int
) -> None:
    pace(stack, 100)
    generation = left_behind(webs[0], acme.api_key)
    with (
        dialled(webs[first], acme.api_key) as old,
        dialled(webs[second], acme.api_key) as new,
    ):
        say(old, type="resume", id="b", generation=generation, after=3)
        seen = take(old, 5)[-1]["seq"]
        say(new, type="resume", id="b", generation=generation, after=seen)
        assert hear(new)["type"] == "resumed"
        frames = take_all(new)
        assert take_all(old)[-1]["error"]["code"] == "taken_over"
        # What the old one says now is of nobody's interest.
        say(old, type="cancel", id="b")
    assert [one["seq"] for one in frames] == list(range(seen + 1, seen + 1 + len(frames)))
    assert acme.usage(1)[0].status == "finished"


def test_a_reader_that_stops(stack: Stack, acme: Customer, webs: list[Web]) -> None:
    """100 MB for a reader that takes none, through both processes: neither grows, the replica is
    held back, and in the end the client is cut and its generation cancelled.
    """
    pace(stack, 2000, interval_s=0, size=50_000)
    with dialled(webs[0], acme.api_key, max_queue=1) as link:
        generation = begin(link, max_tokens=2000)
        seen = hear(link)["seq"]
        cut(link)
    where = urlsplit(webs[1].url)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    raw.connect((where.hostname, where.port))
    before = [resident_bytes(web) for web in webs[:2]]
    with dialled(webs[1], acme.api_key, sock=raw, max_queue=1) as link:
        say(link, type="resume", id="b", generation=generation, after=seen)
        time.sleep(1)
        after = [resident_bytes(web) for web in webs[:2]]
        assert all(new - old < 16 * 2**20 for old, new in zip(before, after, strict=True))
        wait_for("the abort", lambda: not num_running(stack))
        cut(link)
    assert acme.usage(1)[0].status == "cancelled"


def test_its_process_was_killed(stack: Stack, acme: Customer, webs: list[Web]) -> None:
    """What was made is gone with it: told to who reads, and to who comes later."""
    holder = start(stack)
    pace(stack, 1000)
    generation = left_behind(holder, acme.api_key)
    with dialled(webs[1], acme.api_key) as link:
        say(link, type="resume", id="b", generation=generation, after=3)
        take(link, 10)
        holder.process.kill()
        holder.process.wait(10)
        assert take_all(link)[-1]["error"]["code"] == "generation_not_found"
        assert refusal(link, generation, 3)["code"] == "generation_not_found"
    wait_for("the abort", lambda: not num_running(stack))


def test_the_process_between_was_killed(stack: Stack, acme: Customer, webs: list[Web]) -> None:
    between = start(stack)
    pace(stack, 300)
    generation = left_behind(webs[0], acme.api_key)
    with dialled(between, acme.api_key) as link:
        say(link, type="resume", id="b", generation=generation, after=3)
        seen = take(link, 10)[-1]["seq"]
        between.process.kill()
        between.process.wait(10)
    with dialled(webs[1], acme.api_key) as link:
        say(link, type="resume", id="b", generation=generation, after=seen)
        assert hear(link)["type"] == "resumed"
        frames = take_all(link)
    assert [one["seq"] for one in frames] == list(range(seen + 1, seen + 1 + len(frames)))
    [row] = acme.usage(1)
    assert (row.status, row.completion_tokens) == ("finished", 300)


def test_its_process_stops(stack: Stack, acme: Customer, webs: list[Web]) -> None:
    """The end of what it cancelled is still read by another's reader."""
    holder = start(stack)
    pace(stack, 1000)
    generation = left_behind(holder, acme.api_key)
    with dialled(webs[1], acme.api_key) as link:
        say(link, type="resume", id="b", generation=generation, after=3)
        take(link, 10)
        holder.stop()
        assert take_all(link)[-1]["error"]["code"] == "cancelled"
    assert acme.usage(1)[0].status == "cancelled"


@pytest.mark.slow
def test_the_store_is_away_meanwhile(stack: Stack, acme: Customer) -> None:
    """Empty when it comes back: what is read goes on where it was."""
    with own_store() as store:
        webs = [start(stack, REDIS_URL=store[1]) for _ in range(2)]
        pace(stack, 300)
        generation = left_behind(webs[0], acme.api_key)
        with dialled(webs[1], acme.api_key) as link:
            say(link, type="resume", id="b", generation=generation, after=3)
            assert hear(link)["type"] == "resumed"
            frames = take(link, 20)
            store[0].kill()
            store[0].wait()
            store[0] = start_valkey(int(store[1].split(":")[2].split("/")[0]))[0]
            frames += take_all(link)
        for web in webs:
            web.stop()
    assert [one["seq"] for one in frames] == list(range(4, 4 + len(frames)))
    assert frames[-1]["type"] == "done"
    assert acme.usage(1)[0].completion_tokens == 300
