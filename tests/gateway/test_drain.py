"""A replica that an operator drains: what runs ends whole, nothing new comes, and back again."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator

import openai
import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from adapters.models import Replica
from adapters.registry import sync_replicas
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import Behaviour, FakeReplica
from tests.gateway.live import BASE_MODEL, ROOT_DIR, metric, wait_for

BODY = {"model": "support-bot", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def fleet(stack: Stack) -> Iterator[list[FakeReplica]]:
    urls = [replica.url for replica in stack.replicas]
    with override_settings(REPLICA_URLS=urls):
        sync_replicas()
        yield stack.replicas
        Replica.objects.all().delete()
    for url in urls:
        wait_for("the end of the drain", lambda url=url: not is_draining(stack, url))  # type: ignore[misc]


def is_draining(stack: Stack, url: str) -> bool:
    return metric(stack.web, f'grafthouse_replica_draining{{replica="{url}"}}') == 1


def drain(url: str, *options: str) -> str:
    out = io.StringIO()
    call_command("drain", url, *options, stdout=out)
    return out.getvalue()


def test_it_works(stack: Stack, acme: Customer, fleet: list[FakeReplica]) -> None:
    ask = acme.client().chat.completions.create
    ask(**BODY)  # type: ignore[call-overload]
    home, other = sorted(fleet, key=lambda replica: -len(replica.bodies))
    home.behaviour = Behaviour(tokens=["x"] * 400, token_interval_s=0.02)
    running = iter(ask(**BODY, stream=True, max_tokens=100))  # type: ignore[call-overload]
    next(running)

    with pytest.raises(CommandError, match=r"still runs 1 after 0\.1 s"):
        drain(home.url, "--wait", "0.1")
    wait_for("the drain", lambda: is_draining(stack, home.url))
    num_before = len(home.bodies)
    for _ in range(5):
        ask(**BODY)  # type: ignore[call-overload]
    assert (len(home.bodies), len(other.bodies)) == (num_before, 5)
    # What ran there ends there, whole.
    assert sum(bool(one.choices and one.choices[0].delta.content) for one in running) == 100
    assert "may be stopped" in drain(home.url, "--wait", "5")

    home.behaviour = Behaviour()
    assert "takes work again" in drain(home.url, "--resume")
    wait_for("the end of the drain", lambda: not is_draining(stack, home.url))
    ask(**BODY)  # type: ignore[call-overload]
    assert len(home.bodies) == num_before + 1


def test_what_nobody_else_holds_is_served_until_another_has_it(
    stack: Stack, acme: Customer, fleet: list[FakeReplica]
) -> None:
    """One replica an adapter: no request finds none between the operator's word and placement."""
    ask = acme.client().chat.completions.create
    digest = stack.activate(acme, "support-bot", 2)
    home, other = fleet
    other.digests.discard(digest)
    drain(home.url)
    wait_for("the drain", lambda: is_draining(stack, home.url))
    for _ in range(5):
        ask(**BODY)  # type: ignore[call-overload]
        ask(model=BASE_MODEL, messages=BODY["messages"])  # type: ignore[call-overload]
    assert [body["model"] == digest for body in home.bodies] == [True] * 5
    assert [body["model"] == digest for body in other.bodies] == [False] * 5
    # Placement's work.
    other.digests.add(digest)

    def has_moved() -> bool:
        ask(**BODY)  # type: ignore[call-overload]
        return other.bodies[-1]["model"] == digest

    wait_for("the move", has_moved, timeout_s=5)
    num_before = len(home.bodies)
    for _ in range(5):
        ask(**BODY)  # type: ignore[call-overload]
    assert len(home.bodies) == num_before


def test_when_all_drain_the_answer_says_so(
    stack: Stack, acme: Customer, fleet: list[FakeReplica]
) -> None:
    for replica in fleet:
        drain(replica.url)
    wait_for("the drain", lambda: all(is_draining(stack, one.url) for one in fleet))
    with pytest.raises(openai.InternalServerError) as caught:
        acme.client().chat.completions.create(**BODY)  # type: ignore[call-overload]
    assert (caught.value.status_code, caught.value.code) == (503, "no_replica")
    assert not [body for one in fleet for body in one.bodies]
    assert acme.has_no_usage()


def test_a_url_that_is_none_of_ours(fleet: list[FakeReplica]) -> None:
    with pytest.raises(CommandError, match=r"http://nowhere:1 is no replica of the fleet"):
        drain("http://nowhere:1")


def test_a_command_of_other_settings_finds_the_fleet_and_changes_none_of_it(
    stack: Stack, fleet: list[FakeReplica]
) -> None:
    """A shell beside `make run`, which chose its replica's port itself, knows another one's URL."""
    known = set(Replica.objects.values_list("id", "url"))
    with override_settings(REPLICA_URLS=["http://127.0.0.1:8100"]):
        assert "takes nothing new" in drain(fleet[0].url)
        with pytest.raises(CommandError, match="no replica of the fleet, which has"):
            drain("http://127.0.0.1:8100")
    assert set(Replica.objects.values_list("id", "url")) == known
    drain(fleet[0].url, "--resume")


def test_a_shell_that_cannot_reach_the_store_drains_all_the_same(
    stack: Stack, fleet: list[FakeReplica]
) -> None:
    """The store of `make run` has a password that a shell beside it does not know."""
    nowhere = {"DATABASE_URL": stack.database_url, "REDIS_URL": "redis://127.0.0.1:1/0"}
    command = [sys.executable, "manage.py", "drain", fleet[0].url]
    done = subprocess.run(
        command, cwd=ROOT_DIR, env=os.environ | nowhere, capture_output=True, text=True, check=True
    )
    assert "takes nothing new" in done.stdout
    assert "reconcile() waits for the next round" in done.stderr
    assert "Traceback" not in done.stderr
    wait_for("the drain", lambda: is_draining(stack, fleet[0].url))
