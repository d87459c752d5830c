"""Every field of a body: what is taken, and which refusal names it. No server needed."""

from typing import Any

import pytest

from inference.errors import EngineError
from inference.request import Constraint
from inference.server.fields import Fields
from inference.server.requests import parse_chat, parse_completion

VOCAB = 259
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi"}

EXTENSION = "structured_outputs"
NAMED = {"type": "json_schema"}
BAD_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": ""}, "model"),
    ({"model": 5}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "pirate", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "x", "colour": 1}]}, "messages[0].colour"),
    ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
            ]
        },
        "messages[0].tool_calls[0].function.arguments",
    ),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": 1e999}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"seed": 1 << 63}, "seed"),
    ({"seed": "x"}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
    ({"stop": list("abcdefghijklmnopqrstu")}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": [1]}, "stop"),
    ({"stop": 0}, "stop"),
    ({"stop": "x" * 2000}, "stop"),
    ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [True]}, "stop_token_ids"),
    ({"stop_token_ids": 5}, "stop_token_ids"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": "x"}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"999999": 5}}, "logit_bias"),
    ({"logit_bias": {"-1": 5}}, "logit_bias"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"٣": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 1000}}, "logit_bias.5"),
    ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
    ({"logit_bias": {"5": None}}, "logit_bias.5"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {str(number): 1 for number in range(300_000)}}, "logit_bias"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": NAMED | {"json_schema": {}}}, "response_format.json_schema.name"),
    (
        {"response_format": NAMED | {"json_schema": {"name": "n"}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": NAMED | {"json_schema": {"name": "n", "schema": {}, "strict": 1}}},
        "response_format.json_schema.strict",
    ),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs"),
    ({"structured_outputs": {"lark": "a"}}, "structured_outputs.lark"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs",
    ),
    ({"response_format": "text"}, "response_format"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": {}}, "tools"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"functions": []}, "functions"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"store": "yes"}, "store"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"user": 5}, "user"),
    ({"metadata": "x"}, "metadata"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"lora_path": 5}, "lora_path"),
    ({"colour": "blue"}, "colour"),
    ({"prompt": "x"}, "prompt"),
]

BAD_COMPLETION: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": [999999]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [[1], [VOCAB]]}, "prompt"),
    ({"prompt": ["a"] * 100}, "prompt"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 3}, "best_of"),
    ({"messages": []}, "messages"),
]


def test_it_works() -> None:
    chat = parse_chat(Fields(CHAT), VOCAB)
    assert chat.messages == [{"role": "user", "content": "hi"}]
    params = chat.sampling.build(7, 0)
    assert (params.max_tokens, params.temperature, params.top_k, params.seed) == (7, 1.0, 0, None)
    assert parse_completion(Fields(COMPLETION), VOCAB).max_tokens == 16


@pytest.mark.case("C113")
@pytest.mark.parametrize(("change", "param"), BAD_CHAT, ids=lambda value: str(value)[:50])
def test_a_bad_chat_field_is_named(change: dict[str, Any], param: str) -> None:
    """Peers answered with framework bodies or died; each refusal here names its field."""
    with pytest.raises(EngineError) as refused:
        parse_chat(Fields(CHAT | change), VOCAB)
    assert refused.value.param == param
    assert refused.value.status == 400
    assert len(refused.value.message) < 400


@pytest.mark.case("C96")
@pytest.mark.parametrize(("change", "param"), BAD_COMPLETION, ids=lambda value: str(value)[:50])
def test_a_bad_completion_field_is_named(change: dict[str, Any], param: str) -> None:
    with pytest.raises(EngineError) as refused:
        parse_completion(Fields(COMPLETION | change), VOCAB)
    assert refused.value.param == param


@pytest.mark.case("C102")
def test_null_means_absent() -> None:
    """SDKs send null for unset fields; peers answered 422."""
    names = (
        "stop seed temperature top_p top_k min_p n max_tokens max_completion_tokens logit_bias "
        "tools tool_choice response_format stream stream_options user metadata logprobs "
        "structured_outputs "
        "top_logprobs presence_penalty frequency_penalty repetition_penalty store service_tier "
        "parallel_tool_calls modalities audio functions cache_salt lora_path stop_token_ids"
    )
    nulls = dict.fromkeys(names.split())
    filled = parse_chat(Fields(CHAT | nulls | {"logit_bias": {}, "tools": []}), VOCAB)
    plain = parse_chat(Fields(CHAT), VOCAB)
    assert filled.sampling.build(5, 0) == plain.sampling.build(5, 0)
    assert (filled.tools, filled.streaming) == (plain.tools, plain.streaming)


@pytest.mark.case("C97")
def test_either_name_caps() -> None:
    for cap in ({"max_tokens": 5}, {"max_completion_tokens": 5}):
        assert parse_chat(Fields(CHAT | cap), VOCAB).max_tokens == 5
    both = {"max_tokens": 5, "max_completion_tokens": 5}
    assert parse_chat(Fields(CHAT | both), VOCAB).max_tokens == 5
    assert parse_chat(Fields(CHAT), VOCAB).max_tokens is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint("json_object")),
        (
            {"response_format": NAMED | {"json_schema": {"name": "n", "schema": {"b": 1, "a": 2}}}},
            Constraint("json_schema", '{"b": 1, "a": 2}'),
        ),
        (
            {
                "response_format": NAMED
                | {"json_schema": {"name": "n", "schema": {"title": "é"}, "strict": True}}
            },
            Constraint("json_schema", '{"title": "é"}'),
        ),
        ({"structured_outputs": {"regex": "a+"}}, Constraint("regex", "a+", param=EXTENSION)),
        ({"structured_outputs": {"json": "{}"}}, Constraint("json_schema", "{}", param=EXTENSION)),
        (
            {"structured_outputs": {"grammar": 'root ::= "a"'}},
            Constraint("grammar", 'root ::= "a"', param=EXTENSION),
        ),
        (
            {"structured_outputs": {"choice": ["a", 'é"\\\n']}},
            Constraint("grammar", r'root ::= "a" | "é\x22\x5c\x0a"', param=EXTENSION),
        ),
    ],
)
def test_what_an_answer_must_be(fields: dict[str, Any], expected: Constraint | None) -> None:
    for parsed in (
        parse_chat(Fields(CHAT | fields | {"ignore_eos": True}), VOCAB),
        parse_completion(Fields(COMPLETION | fields | {"ignore_eos": True}), VOCAB),
    ):
        params = parsed.sampling.build(5, 0)
        assert params.constraint == expected
        assert params.ignore_eos == (expected is None)


def test_choices_of_one_request_have_their_own_seeds() -> None:
    sampling = parse_chat(Fields(CHAT | {"seed": -1, "n": 3}), VOCAB).sampling
    seeds = [sampling.build(1, number).seed for number in range(3)]
    assert len(set(seeds)) == 3
    assert all(seed is not None and 0 <= seed < 1 << 63 for seed in seeds)


def test_top_p_zero_is_the_one_most_likely_token() -> None:
    params = parse_chat(Fields(CHAT | {"top_p": 0}), VOCAB).sampling.build(1, 0)
    assert (params.top_p, params.top_k) == (1.0, 1)


def test_all_sampling_fields_arrive() -> None:
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "min_tokens": 2,
        "stop_token_ids": [1, 2],
        "ignore_eos": True,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.1,
    }
    body = CHAT | given | {"logit_bias": {"3": -100}, "logprobs": True, "top_logprobs": 4}
    params = parse_chat(Fields(body), VOCAB).sampling.build(9, 0)
    for name, value in given.items():
        assert getattr(params, name) == (tuple(value) if isinstance(value, list) else value)
    assert params.logit_bias == ((3, -100.0),)
    assert params.num_logprobs == 4


@pytest.mark.case("C100")
def test_message_variants() -> None:
    """Parts, null content beside tool calls, and the developer role broke templates at peers."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "user", "content": "", "name": "Ann"},
    ]
    parsed = parse_chat(Fields(CHAT | {"messages": messages}), VOCAB).messages
    assert parsed[0] == {"role": "system", "content": "be brief"}
    assert parsed[1]["content"] == "ab"
    assert parsed[2]["content"] is None
    assert parsed[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert parsed[3] == {"role": "tool", "content": "42", "tool_call_id": "c1"}
    assert parsed[4] == {"role": "user", "content": "", "name": "Ann"}


def test_an_answer_comes_back_as_its_client_holds_it() -> None:
    """OpenAI's parse() and other clients' messages, dumped whole: null is no field."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    nulls = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "images"))
    answers = [
        {"role": "assistant", "content": "{}", "parsed": {"a": 1}, "tool_calls": None} | nulls,
        {"role": "assistant", "content": None, "parsed": None, "tool_calls": [call]} | nulls,
    ]
    parsed = parse_chat(Fields(CHAT | {"messages": answers, "no_such_field": None}), VOCAB)
    assert parsed.messages[0] == {"role": "assistant", "content": "{}"}
    assert [set(one) for one in parsed.messages[1:]] == [{"role", "content", "tool_calls"}]


def test_prompts_in_all_four_forms() -> None:
    def prompts(value: Any) -> Any:
        return parse_completion(Fields(COMPLETION | {"prompt": value}), VOCAB).prompts

    assert prompts("a") == ("a",)
    assert prompts(["a", "b"]) == ("a", "b")
    assert prompts([1, 2]) == ((1, 2),)
    assert prompts([[1], [2, 3]]) == ((1,), (2, 3))
