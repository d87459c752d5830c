"""/v1/completions with the stock client, before the real engine."""

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.inference.server.conftest import Server

RUN_ON = {"ignore_eos": True}
GREEDY: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "extra_body": RUN_ON}


def test_it_works(client: OpenAI) -> None:
    answer = client.completions.create(model="red", prompt="hello", **GREEDY)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 8)


def test_the_default_is_16_tokens(client: OpenAI) -> None:
    answer = client.completions.create(model="red", prompt="hello", extra_body=RUN_ON)
    assert answer.usage is not None and answer.usage.completion_tokens == 16


def test_ids_and_text_are_the_same_prompt(client: OpenAI, server: Server) -> None:
    ids = server.call("/tokenize", {"model": "red", "prompt": "hello"}).json["tokens"]
    texts = [
        client.completions.create(model="red", prompt=prompt, **GREEDY).choices[0].text
        for prompt in ("hello", ids, ["hello"], [ids])
    ]
    assert len(set(texts)) == 1


def test_lists_give_choices_in_order(client: OpenAI) -> None:
    prompts = ["one", "two", "three"]
    alone = [
        client.completions.create(model="red", prompt=prompt, **GREEDY).choices[0].text
        for prompt in prompts
    ]
    many = client.completions.create(model="red", prompt=prompts, n=2, **GREEDY)
    assert [choice.index for choice in many.choices] == list(range(6))
    assert [choice.text for choice in many.choices] == [text for text in alone for _ in range(2)]
    assert many.usage is not None
    assert (many.usage.prompt_tokens, many.usage.completion_tokens) == (11, 48)


def test_a_stream_joins_to_the_whole(client: OpenAI) -> None:
    whole = client.completions.create(model="red", prompt="hello", **GREEDY)
    chunks = list(client.completions.create(model="red", prompt="hello", stream=True, **GREEDY))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert {chunk.object for chunk in chunks} == {"text_completion"}


@pytest.mark.case("C96")
def test_logprobs_are_four_arrays(client: OpenAI) -> None:
    answer = client.completions.create(model="red", prompt="hello", logprobs=2, **GREEDY)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None and logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None and logprobs.text_offset is not None
    assert len(logprobs.tokens) == 8
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 8
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    for token, chosen, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert top[token] == chosen
        assert 1 <= len(top) <= 3
    zero = client.completions.create(model="red", prompt="hello", logprobs=0, **GREEDY)
    assert zero.choices[0].logprobs is not None
    assert zero.choices[0].logprobs.token_logprobs == logprobs.token_logprobs
    none = client.completions.create(model="red", prompt="hello", **GREEDY)
    assert none.choices[0].logprobs is None


@pytest.mark.case("C96")
def test_echo(client: OpenAI) -> None:
    """With max_tokens 0 peers crashed."""
    plain = client.completions.create(model="red", prompt="hello", **GREEDY)
    echoed = client.completions.create(model="red", prompt="hello", echo=True, **GREEDY)
    assert echoed.choices[0].text == "hello" + plain.choices[0].text
    only = client.completions.create(model="red", prompt="hello", echo=True, max_tokens=0)
    assert only.choices[0].text == "hello"
    assert only.choices[0].finish_reason == "length"
    assert only.usage is not None and only.usage.completion_tokens == 0
    chunks = client.completions.create(
        model="red", prompt="hello", echo=True, stream=True, **GREEDY
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == echoed.choices[0].text


@pytest.mark.case("C96")
@pytest.mark.parametrize("prompt", ["", [""], [[]]])
def test_an_empty_prompt_is_refused(server: Server, prompt: Any) -> None:
    answer = server.call("/v1/completions", {"model": "red", "prompt": prompt})
    assert answer.status == 400
    assert answer.error["param"] == "prompt"


def test_too_long_names_the_prompt(client: OpenAI) -> None:
    for length, cap in ((600, 1), (500, 50)):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="red", prompt="x" * length, max_tokens=cap)
        assert refused.value.code == "context_length_exceeded"
        assert refused.value.param == "prompt"


@pytest.mark.case("C116")
def test_a_rendered_chat_is_the_same_prompt(client: OpenAI, server: Server) -> None:
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    by_chat = server.call("/tokenize", {"model": "tiny", "messages": messages}).json
    by_text = server.call("/tokenize", {"model": "tiny", "prompt": rendered}).json
    assert by_chat == by_text
    assert by_chat["max_model_len"] == 512
    chat = client.chat.completions.create(
        model="red", messages=messages, max_tokens=8, temperature=0, extra_body=RUN_ON
    )
    text = client.completions.create(model="red", prompt=rendered, **GREEDY)
    assert chat.choices[0].message.content == text.choices[0].text
    assert chat.usage is not None and text.usage is not None
    assert chat.usage.prompt_tokens == text.usage.prompt_tokens == by_chat["count"]
