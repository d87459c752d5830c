"""A web process over vLLM or SGLang: what is asked for, proved, refused and counted."""

from collections.abc import Iterator

import openai
import pytest
import requests
from pytest_django import DjangoDbBlocker

from tests.adapters.fake_peers import BASE, FakePeer, FakeSglang, FakeVllm
from tests.adapters.fake_replica import running
from tests.gateway.conftest import Customer, Stack
from tests.gateway.live import default_database, default_store, start_web, wait_for
from tests.gateway.test_profile import give

MESSAGES = [{"role": "user", "content": "Hi"}]
PEERS = {"vllm": FakeVllm, "sglang": FakeSglang}


@pytest.fixture(scope="module", params=PEERS)
def peer_stack(
    request: pytest.FixtureRequest, running_stack: Stack
) -> Iterator[tuple[Stack, FakePeer]]:
    with running(PEERS[request.param]()) as peer:
        url = f"{request.param}+{peer.url}"
        web = start_web(running_stack.folder, running_stack.database_url, [url])
        yield Stack(web, [], running_stack.database_url, running_stack.folder), peer
        web.close_clients()
        web.stop()


@pytest.fixture
def served(
    peer_stack: tuple[Stack, FakePeer], django_db_blocker: DjangoDbBlocker
) -> Iterator[tuple[Customer, FakePeer, str]]:
    """(a customer, the peer, the digest of its active support-bot, which the peer holds)."""
    stack, peer = peer_stack
    peer.impostor = ""
    with django_db_blocker.unblock(), default_database(stack.database_url), default_store():
        customer = stack.make_customer()
        digest = stack.activate(customer, "support-bot")
        peer.adapters = {digest: f"/store/{digest[:2]}/{digest}"}
        yield customer, peer, digest


def ask(customer: Customer, model: str) -> openai.types.chat.ChatCompletion:
    answer = customer.client().chat.completions.create(model=model, messages=MESSAGES)  # type: ignore[call-overload]
    assert isinstance(answer, openai.types.chat.ChatCompletion)
    return answer


def test_it_works(served: tuple[Customer, FakePeer, str]) -> None:
    customer, peer, digest = served
    answer = ask(customer, "support-bot")
    assert answer.choices[0].message.content == "Hello world!"
    assert (answer.model, answer.system_fingerprint) == ("support-bot@1", digest)
    named = digest if isinstance(peer, FakeVllm) else f"{BASE}:{digest}"
    assert peer.bodies[-1]["model"] == named and peer.bodies[-1]["cache_salt"]
    assert "x-tenant-weight" not in {name.lower() for name in peer.headers[-1]}
    (row,) = customer.usage(1)
    assert (row.prompt_tokens, row.completion_tokens, row.digest) == (7, 3, digest)


def test_the_base_is_asked_for_by_its_own_name(served: tuple[Customer, FakePeer, str]) -> None:
    customer, peer, _ = served
    answer = ask(customer, "tiny-base")
    assert (answer.model, answer.system_fingerprint) == ("tiny-base", "base")
    assert peer.bodies[-1]["model"] == BASE


@pytest.mark.parametrize("model", ["support-bot", "tiny-base"])
def test_an_answer_by_another_name_is_refused_and_counted(
    served: tuple[Customer, FakePeer, str], model: str
) -> None:
    customer, peer, _ = served
    peer.impostor = BASE if model == "support-bot" else "f" * 64
    before = mismatches(customer)
    with pytest.raises(openai.InternalServerError) as caught:
        ask(customer, model)
    assert "Hello" not in str(caught.value)
    assert mismatches(customer) == before + 1


def mismatches(customer: Customer) -> float:
    text = requests.get(f"{customer.web.url}/metrics", timeout=30).text
    name = "grafthouse_digest_mismatches_total "
    return float(next(line for line in text.splitlines() if line.startswith(name)).split()[1])


def test_an_adapter_that_just_went_is_unavailable_and_not_the_base(
    served: tuple[Customer, FakePeer, str],
) -> None:
    """The last poll still lists it; the peer itself says that it is gone."""
    customer, peer, _ = served
    ask(customer, "support-bot")
    num_asked = len(peer.bodies)
    peer.adapters = {}
    # Either the poll was quicker, or the peer was asked and refused: never an answer.
    with pytest.raises(openai.InternalServerError) as caught:
        ask(customer, "support-bot")
    assert caught.value.status_code == 503
    assert all(body["model"] != BASE for body in peer.bodies[num_asked:])


def test_a_name_over_another_folder_is_not_routed_to(
    served: tuple[Customer, FakePeer, str],
) -> None:
    customer, peer, digest = served
    peer.adapters = {digest: "/somewhere/else"}

    def status() -> bool:
        try:
            ask(customer, "support-bot")
        except openai.InternalServerError as error:
            return error.status_code == 503
        return False

    wait_for("the poll that sees the folder", status)


def test_a_version_with_its_own_chat_template_is_not_served_by_the_bases(
    served: tuple[Customer, FakePeer, str],
) -> None:
    customer, peer, _ = served
    give(customer, {"chat_template": "{{ messages[0].content }}"})
    num_bodies = len(peer.bodies)
    with pytest.raises(openai.InternalServerError) as caught:
        ask(customer, "support-bot")
    assert caught.value.status_code == 503
    assert caught.value.code == "chat_template_unavailable"
    assert len(peer.bodies) == num_bodies
