"""The gateway over the real engine: a tiny model in a process of its own, which is killed."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
import requests

from adapters.models import AdapterVersion, VersionState
from tenants.scope import tenant_scope
from tests.gateway.conftest import Customer, Stack
from tests.gateway.engine_process import Engine, is_ready, start_engine
from tests.gateway.live import BASE_MODEL, Web, wait_for

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "Hi there"}]


def test_it_works(engine: Engine, customer: Customer) -> None:
    create = customer.client().chat.completions.create
    # Random weights may end anywhere.
    options = {"max_tokens": 12, "temperature": 0, "extra_body": {"ignore_eos": True}}
    answers = {}
    for name in ("bot", BASE_MODEL):
        whole = create(model=name, messages=MESSAGES, **options)
        stream = create(model=name, messages=MESSAGES, stream=True, **options)
        answers[name] = whole.choices[0].message.content
        text = "".join(one.choices[0].delta.content or "" for one in stream)
        assert text == answers[name]
        assert whole.usage and whole.usage.completion_tokens == 12
    assert answers["bot"] != answers[BASE_MODEL]
    rows = customer.usage(4)
    assert [row.completion_tokens for row in rows] == [12] * 4
    # The second prompt of each model came from the prefix cache, and the row knows.
    assert rows[1].cached_tokens and rows[3].cached_tokens


@pytest.fixture
def twin(
    engine: Engine, engine_stack: tuple[Engine, Web, str], customer: Customer, tmp_path: Path
) -> Customer:
    """Another tenant, whose "bot" is the same bytes."""
    stack = Stack(engine_stack[1], [], engine_stack[2], tmp_path)
    twin = stack.make_customer()
    stack.activate(twin, "bot", digest=active_digest(customer))
    return twin


def num_cached(customer: Customer, model: str, text: str, **more: Any) -> int:
    """Tokens of the prompt that were not computed."""
    answer = customer.client().completions.create(
        model=model, prompt=text, max_tokens=1, extra_body=more
    )
    assert answer.usage and answer.usage.prompt_tokens_details
    return answer.usage.prompt_tokens_details.cached_tokens or 0


@pytest.mark.case("C65")
@pytest.mark.parametrize("model", ["bot", BASE_MODEL])
def test_two_tenants_share_no_prefix(customer: Customer, twin: Customer, model: str) -> None:
    """A peer keyed its prefix cache by tokens alone. Here the same prompt to the same bytes under
    the same name finds nothing that another tenant's left, nor with a salt that was learned: every
    token is computed again, so the time tells nothing either.
    """
    text = "told by a tenant " * 20
    assert num_cached(customer, model, text) == 0
    assert num_cached(customer, model, text) > 200
    assert num_cached(twin, model, text, cache_salt=customer.tenant.cache_salt) == 0
    assert num_cached(twin, model, text) > 200
    assert [(one.cached_tokens or 0) > 200 for one in twin.usage(2)] == [False, True]


def without_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_floats(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_floats(one) for one in value]
    return None if isinstance(value, float) else value


def direct_and_folded(engine: Engine, customer: Customer, **more: int) -> tuple[Any, Any]:
    """The choices of the engine's own answer, and of the gateway's, which it makes of a stream."""
    logprobs = {"logprobs": True, "top_logprobs": 2}
    body = {"model": "bot", "messages": MESSAGES, "max_tokens": 6, "seed": 1, **logprobs, **more}
    direct = requests.post(
        f"{engine.url}/v1/chat/completions",
        json=body | {"model": active_digest(customer)},
        timeout=30,
    ).json()
    folded = customer.client().chat.completions.create(**body)  # type: ignore[call-overload]
    wanted = openai.types.chat.ChatCompletion(**direct).model_dump()["choices"]
    return wanted, folded.model_dump()["choices"]


def test_logprobs_survive_the_fold(engine: Engine, customer: Customer) -> None:
    wanted, found = direct_and_folded(engine, customer)
    assert found == wanted and found[0]["logprobs"]["content"][0]["top_logprobs"]


def test_choices_survive_the_fold(engine: Engine, customer: Customer) -> None:
    """But for floats: two that decode together or one after the other round otherwise."""
    wanted, found = direct_and_folded(engine, customer, n=2)
    assert without_floats(found) == without_floats(wanted) and len(found) == 2


@pytest.mark.case("C96")
def test_a_prompt_is_scored(engine: Engine, customer: Customer) -> None:
    """Only its own tokens are counted, and it costs no completion."""
    # A control token alone has no text; it is scored and counted like any other.
    body = {"prompt": ["hello", [256, 256]], "echo": True, "logprobs": 1, "max_tokens": 0}
    model = active_digest(customer)
    url = f"{engine.url}/v1/completions"
    direct = requests.post(url, json=body | {"model": model}, timeout=30).json()
    for is_stream in (False, True):
        answer = customer.client().completions.create(model="bot", **body, stream=is_stream)
        if is_stream:
            chunks = [one for chunk in answer for one in chunk.choices]
            tokens = [t for one in chunks if one.logprobs for t in one.logprobs.tokens]
            assert sorted(tokens) == sorted([*"hello", "<|endoftext|>", "<|endoftext|>"])
            continue
        wanted = direct["choices"]
        found = answer.model_dump()["choices"]
        assert without_floats(found) == without_floats(wanted)
        scores = [found[0]["logprobs"]["token_logprobs"], wanted[0]["logprobs"]["token_logprobs"]]
        assert scores[0][1:] == pytest.approx(scores[1][1:], abs=1e-4)
    assert [(row.prompt_tokens, row.completion_tokens) for row in customer.usage(2)] == [(7, 0)] * 2
    only = body | {"prompt": [256, 256]}
    customer.client().completions.create(model="bot", **only)  # type: ignore[call-overload]
    assert customer.usage(3)[2].prompt_tokens == 2


def active_digest(customer: Customer) -> str:
    with tenant_scope(customer.tenant.id):
        return AdapterVersion.objects.get(state=VersionState.ACTIVE).digest


@pytest.mark.case("C99")
def test_too_long(customer: Customer) -> None:
    messages = [{"role": "user", "content": "x" * 3000}]
    for is_stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            customer.client().chat.completions.create(
                model="bot",
                messages=messages,  # type: ignore[arg-type]
                stream=is_stream,
            )
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    # Our default of 512 does not fit beside this prompt, the prompt does.
    fits = [{"role": "user", "content": "x" * 300}]
    customer.client().chat.completions.create(model="bot", messages=fits)  # type: ignore[arg-type]


def test_a_schema_passes_through(customer: Customer) -> None:
    """The engine holds an adapter's answer to it; the gateway passes it on as it came."""
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}
    answer = customer.client().chat.completions.create(
        model="bot",
        messages=MESSAGES,  # type: ignore[arg-type]
        max_tokens=100,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "flags", "schema": schema, "strict": True},
        },
    )
    flags = json.loads(answer.choices[0].message.content or "")
    assert {type(flag) for flag in flags} == {bool}
    assert answer.choices[0].finish_reason == "stop"


def num_sampled(engine: Engine) -> int:
    text = requests.get(f"{engine.url}/metrics", timeout=30).text
    name = "inference_output_tokens_total "
    return int(float(next(one for one in text.splitlines() if one.startswith(name)).split()[1]))


@pytest.mark.case("C121")
def test_cut_streams_are_charged_what_the_engine_made(engine: Engine, customer: Customer) -> None:
    """But for what it made after its client had gone, which nobody got: a few steps a stream."""
    before, num_seen = num_sampled(engine), 0
    for number in range(8):
        stream = customer.client().chat.completions.create(
            model="bot",
            messages=MESSAGES,  # type: ignore[arg-type]
            stream=True,
            max_tokens=400,
            extra_body={"ignore_eos": True},
        )
        for _, chunk in zip(range(2 + number), stream, strict=False):
            num_seen += bool(chunk.choices)
        stream.close()
    rows = customer.usage(8)
    assert {row.status for row in rows} == {"cancelled"}
    charged, made = sum(row.completion_tokens or 0 for row in rows), num_sampled(engine) - before
    assert num_seen - 8 <= charged <= made, (num_seen, charged, made)
    assert made - charged <= 25 * 8, (charged, made)


def test_kill_mid_stream(engine: Engine, customer: Customer) -> None:
    """The last test of this module: the engine dies, is started again, and serves."""
    stream = customer.client().chat.completions.create(
        model="bot",
        messages=MESSAGES,  # type: ignore[arg-type]
        stream=True,
        max_tokens=450,
        extra_body={"ignore_eos": True},
    )
    num_chunks = 0
    with pytest.raises(openai.APIError) as caught:
        for _ in stream:
            num_chunks += 1
            if num_chunks == 10:
                engine.process.kill()
    assert caught.value.code == "replica_failed"
    [row] = customer.usage(1)
    assert (row.status, row.error_code) == ("failed", "replica_failed")
    assert row.completion_tokens and 8 <= row.completion_tokens < 450
    assert row.cost > 0
    with pytest.raises(openai.InternalServerError) as gone:
        customer.client().chat.completions.create(model="bot", messages=MESSAGES)  # type: ignore[arg-type]
    assert (gone.value.status_code, gone.value.code) == (503, "no_replica")
    engine.process.wait(10)
    engine.process = start_engine(engine.base, engine.port).process
    wait_for("the engine", lambda: is_ready(customer.web.url), timeout_s=90)
    customer.client().chat.completions.create(
        model=BASE_MODEL,
        messages=MESSAGES,  # type: ignore[arg-type]
        max_tokens=4,
    )
