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
def test_a_prompt_is_scored_alone(client: OpenAI, server: Server) -> None:
    """echo, logprobs and max_tokens 0: what peers crash on, and what a loss is made of."""
    ask: dict[str, Any] = {"model": "red", "echo": True, "logprobs": 2, "max_tokens": 0}
    text = "héllo 語!<|im_end|>"
    answer = client.completions.create(prompt=text, **ask)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (text, "length")
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.tokens is not None
    assert logprobs.token_logprobs is not None and logprobs.top_logprobs is not None
    # Nothing stands before the first token.
    assert (logprobs.token_logprobs[0], logprobs.top_logprobs[0]) == (None, None)
    assert all(value < 0 for value in logprobs.token_logprobs[1:])
    for token, own, top in zip(
        logprobs.tokens[1:], logprobs.token_logprobs[1:], logprobs.top_logprobs[1:], strict=True
    ):
        assert top[token] == own and 2 <= len(top) <= 3
    assert logprobs.tokens[0] == "h" and logprobs.tokens[-1] == "<|im_end|>"
    starts = logprobs.text_offset
    assert starts is not None and starts == sorted(starts) and len(starts) == len(logprobs.tokens)
    assert (starts[0], text[starts[-1] :]) == (0, "<|im_end|>")
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(starts), 0)
    # Ids are the same prompt; a control token shows as nothing there, as in any answer.
    ids = server.call("/tokenize", {"model": "red", "prompt": text}).json["tokens"]
    by_ids = client.completions.create(prompt=ids, **ask).choices[0]
    assert by_ids.logprobs is not None
    assert by_ids.logprobs.token_logprobs == logprobs.token_logprobs


@pytest.mark.case("C96")
def test_the_scores_come_before_the_answers_own(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": "red", "prompt": ["hello", "x"], "n": 2, "logprobs": 1} | GREEDY
    plain = client.completions.create(**ask).choices
    whole = client.completions.create(echo=True, **ask).choices
    for prompt, bare, choice in zip(["hello"] * 2 + ["x"] * 2, plain, whole, strict=True):
        assert choice.text == prompt + bare.text
        assert choice.logprobs is not None and bare.logprobs is not None
        assert choice.logprobs.tokens is not None and bare.logprobs.tokens is not None
        assert choice.logprobs.tokens == [*prompt, *bare.logprobs.tokens]
        assert bare.logprobs.text_offset is not None and choice.logprobs.text_offset is not None
        moved = [len(prompt) + offset for offset in bare.logprobs.text_offset]
        assert choice.logprobs.text_offset == [*range(len(prompt)), *moved]
    # In a stream each chunk's entries are those of its text; joined they are the whole.
    texts, tokens = [""] * 4, [list[str]() for _ in range(4)]
    for chunk in client.completions.create(echo=True, stream=True, **ask):
        for part in chunk.choices:
            texts[part.index] += part.text
            if part.logprobs is not None and part.logprobs.tokens is not None:
                tokens[part.index] += part.logprobs.tokens
    assert texts == [choice.text for choice in whole]
    assert tokens == [choice.logprobs and choice.logprobs.tokens for choice in whole]


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
    closed = [*messages, {"role": "assistant", "content": "yo"}]
    body = {"model": "tiny", "messages": closed, "add_generation_prompt": False}
    whole = server.call("/tokenize", body).json["tokens"]
    rest = server.call("/tokenize", {"model": "tiny", "prompt": "yo<|im_end|>\n"}).json["tokens"]
    assert whole == by_chat["tokens"] + rest
    chat = client.chat.completions.create(
        model="red", messages=messages, max_tokens=8, temperature=0, extra_body=RUN_ON
    )
    text = client.completions.create(model="red", prompt=rendered, **GREEDY)
    assert chat.choices[0].message.content == text.choices[0].text
    assert chat.usage is not None and text.usage is not None
    assert chat.usage.prompt_tokens == text.usage.prompt_tokens == by_chat["count"]
