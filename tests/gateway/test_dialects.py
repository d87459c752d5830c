"""A web process over vLLM or SGLang: what is asked for, proved, refused and counted."""

from collections.abc import Iterator

import openai
import pytest
import requests
from pytest_django import DjangoDbBlocker

from tests.adapters.fake_peers import BASE, Ending, FakePeer, FakeSglang, FakeVllm
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
    peer.behave()
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


def stream(customer: Customer, **more: object) -> Iterator[openai.types.chat.ChatCompletionChunk]:
    body = {"model": "support-bot", "messages": MESSAGES, "stream": True, **more}
    return iter(customer.client().chat.completions.create(**body))  # type: ignore[call-overload, no-any-return]


def text_of(chunks: list[openai.types.chat.ChatCompletionChunk]) -> str:
    return "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)


def test_a_stream(served: tuple[Customer, FakePeer, str]) -> None:
    """In our names and ids, with usage where it was asked for and nowhere else."""
    customer, _, digest = served
    plain = list(stream(customer))
    counted = list(stream(customer, stream_options={"include_usage": True}))
    for chunks in (plain, counted[:-1]):
        assert text_of(chunks) == "Hello world!"
        assert {(one.model, one.system_fingerprint) for one in chunks} == {
            ("support-bot@1", digest)
        }
        assert [one.choices[0].finish_reason for one in chunks][-1] == "stop"
        assert all(one.choices and one.usage is None for one in chunks)
    assert not counted[-1].choices and counted[-1].usage
    assert (counted[-1].usage.prompt_tokens, counted[-1].usage.completion_tokens) == (7, 3)
    rows = customer.usage(2)
    assert [(row.status, row.prompt_tokens, row.completion_tokens) for row in rows] == [
        ("finished", 7, 3)
    ] * 2


@pytest.mark.case("C132")
@pytest.mark.parametrize("ending", ["fails", "dies"])
def test_a_stream_that_breaks(served: tuple[Customer, FakePeer, str], ending: Ending) -> None:
    """An error frame after what came, which is billed."""
    customer, peer, _ = served
    peer.ending, peer.token_interval_s = ending, 0.05
    seen = []
    with pytest.raises(openai.APIError) as caught:
        for chunk in stream(customer):
            seen.append(chunk)
    assert text_of(seen) == "Hello world"
    code = "replica_failed" if ending == "dies" else "internal_error"
    assert caught.value.code == code
    [row] = customer.usage(1)
    assert (row.status, row.error_code, row.completion_tokens) == ("failed", code, 2)
    assert row.cost > 0


@pytest.mark.case("C104")
def test_a_client_that_leaves(served: tuple[Customer, FakePeer, str]) -> None:
    customer, peer, _ = served
    peer.token_interval_s = 0.5
    chunks = stream(customer)
    next(chunks)
    customer.web.close_clients()
    wait_for("the abort", lambda: not peer.num_running, timeout_s=2)
    [row] = customer.usage(1)
    assert row.status == "cancelled" and (row.completion_tokens or 0) < 3


@pytest.mark.case("C99")
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_prompt_that_is_too_long(served: tuple[Customer, FakePeer, str], is_stream: bool) -> None:
    """In each engine's own words, and always OpenAI's code."""
    customer, peer, _ = served
    peer.too_long = True
    with pytest.raises(openai.BadRequestError) as caught:
        customer.client().chat.completions.create(
            model="support-bot",
            messages=MESSAGES,  # type: ignore[arg-type]
            stream=is_stream,
            max_tokens=5,
        )
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert "512" in caught.value.message
    [row] = customer.usage(1)
    assert (row.status, row.cost) == ("failed", 0)
