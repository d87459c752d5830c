"""Constrained output through the engine. Weights are random: an answer that fits is the mask's."""

import json
import re
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from inference.adjust import allowed_tokens
from inference.errors import EngineError, ErrorCode
from inference.request import Constraint, Failed, Finished, SamplingParams
from tests.inference.constraining import Patient, error_of, held_to, make_patient, schema, text_of
from tests.inference.driving import PROMPT, Client, make_engine
from tests.tiny import EOS_TOKEN_ID, VOCAB_SIZE, make_base

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
DATE = Constraint("regex", r"\d{4}-\d{2}-\d{2}")
HELD = Constraint("grammar", 'root ::= "held"')

# Bounded, so that a random model comes to an end.
SCHEMAS: dict[str, Any] = {
    "object": PERSON,
    "constants": {"enum": ["x", 1, None, {"a": [True]}]},
    "const": {"const": {"é": 1}},
    "number": {"type": "number", "minimum": -2.5, "maximum": 7},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    "string": {"type": "string", "minLength": 3, "maxLength": 5},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    # As zod writes them; by the standard the format beside it is a remark.
    "pattern": {"type": "string", "format": "date", "pattern": "^20[0-9]{2}-0[1-9]-1[0-9]$"},
    "types": {"type": ["boolean", "null"]},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"const": "z"}],
        "items": False,
        "minItems": 2,
    },
    "any of": {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 2}]},
    "keys": {
        "type": "object",
        "patternProperties": {"^k[0-9]$": {"type": "boolean"}},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 2,
    },
    "recursive": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
}


@pytest.fixture(scope="module")
def client(base: Path, paths: dict[str, Path]) -> Client:
    return make_patient(base, paths)


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("adapter", [None, "a"])
def test_an_answer_fits_its_schema(client: Client, name: str, adapter: str | None) -> None:
    for seed in range(3):
        params = held_to(schema(SCHEMAS[name]), seed=seed)
        request = client.submit(PROMPT[:9], params, adapter)
        client.drain()
        (end,) = client.terminal(request)
        answer = text_of(client.tokens(request))
        # A recursive answer may be endless: then it is cut.
        if end == Finished(request, "length") and name == "recursive":
            continue
        assert end == Finished(request, "stop"), answer
        assert client.tokens(request)[-1] == EOS_TOKEN_ID
        jsonschema.validate(
            json.loads(answer),
            SCHEMAS[name],
            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
        )


def test_any_object(client: Client) -> None:
    """Cut by max_tokens it is "length"; ended by itself it is an object."""
    reasons = set()
    for seed in range(12):
        request = client.submit(PROMPT[:9], held_to(Constraint("json_object"), 120, seed=seed))
        client.drain()
        (end,) = client.terminal(request)
        assert isinstance(end, Finished)
        reasons.add(end.reason)
        answer = text_of(client.tokens(request))
        assert answer.startswith("{")
        if end.reason == "stop":
            assert isinstance(json.loads(answer), dict)
    assert reasons == {"stop", "length"}


def test_regex_and_grammar(client: Client) -> None:
    assert re.fullmatch(DATE.text, text_of(client.ask(PROMPT[:5], held_to(DATE))))
    assert text_of(client.ask(PROMPT[:5], held_to(HELD))) == "held"


def test_one_sequence_only_whatever_the_parameters(client: Client) -> None:
    """Nothing overrules a grammar; one that is complete ends, also where ends are forbidden."""
    spelled = [
        token for token, _ in zip(client.ask(PROMPT[:5], held_to(HELD)), "held", strict=False)
    ]
    for params in (
        {"temperature": 0.0},
        {"ignore_eos": True},
        {"min_tokens": 50},
        {"logit_bias": ((spelled[0], -100.0), (7, 100.0))},
        {"repetition_penalty": 5.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"top_k": 1},
        {"top_p": 0.01},
        {"min_p": 0.9},
        {"num_logprobs": 3},
    ):
        request = client.submit(PROMPT[:5], held_to(HELD, **params))
        client.drain()
        assert client.tokens(request) == [*spelled, EOS_TOKEN_ID], params
        assert client.terminal(request) == [Finished(request, "stop")]
    stopped = client.ask(PROMPT[:5], held_to(HELD, stop_token_ids=(spelled[1],)))
    assert stopped == spelled[:2]


def test_min_tokens_holds_a_choice_open(client: Client) -> None:
    tokens = client.ask(PROMPT[:5], held_to(Constraint("regex", "a*"), 200, min_tokens=30))
    assert len(tokens) > 30
    assert set(text_of(tokens)) == {"a"}


def test_in_company_as_alone(base: Path, paths: dict[str, Path]) -> None:
    """Rows with and without a grammar, adapters or none, in one batch or one by one."""
    asked = [
        (held_to(schema(PERSON), 60, seed=3), "a"),
        (SamplingParams(60, seed=4, ignore_eos=True), "b"),
        (held_to(Constraint("json_object"), 60, seed=5), None),
        (SamplingParams(60, temperature=0.0, ignore_eos=True), None),
        (held_to(DATE, seed=6, num_logprobs=2), "b"),
    ]
    one = make_patient(base, paths)
    alone = [one.ask(PROMPT[:9], params, name) for params, name in asked]
    other = make_patient(base, paths)
    together = [other.submit(PROMPT[:9], params, name) for params, name in asked]
    other.drain()
    assert [other.tokens(name) for name in together] == alone


def test_preempted_and_computed_again(base: Path, paths: dict[str, Path]) -> None:
    params = [held_to(Constraint("json_object"), 150, seed=seed) for seed in range(6)]
    roomy = make_patient(base, paths)
    alone = [roomy.ask(PROMPT[:9], each) for each in params]
    tight = make_patient(base, paths, kv_cache_bytes=24 * 16 * 2 * 2 * 2 * 16 * 4)
    names = [tight.submit(PROMPT[:9], each) for each in params]
    tight.drain()
    assert tight.engine.stats().num_preemptions > 0
    assert [tight.tokens(name) for name in names] == alone


def test_logprobs_are_the_models_own(client: Client) -> None:
    """The grammar leaves one token; its probability is what the model gave it, not 1."""
    request = client.submit(PROMPT[:5], held_to(HELD, num_logprobs=1))
    client.drain()
    first = client.events[request][0]
    assert first.logprobs.logprob < -0.01  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (schema({"type": "foo"}), "foo"),
        (Constraint("json_schema", "{"), "not JSON"),
        (Constraint("regex", "(a"), "parenthesis"),
        (Constraint("regex", r"(?=a)b"), "Lookahead"),
        (Constraint("grammar", 'other ::= "a"'), "root"),
        (Constraint("grammar", 'root ::= root "a"'), "no token"),
    ],
)
def test_a_refused_text(client: Client, constraint: Constraint, reason: str) -> None:
    try:
        failed: Failed | EngineError = error_of(client, constraint)
    except EngineError as refused:
        failed = refused
    assert (failed.code, failed.param) == (ErrorCode.INVALID_REQUEST, "response_format")
    assert reason in failed.message
    assert "/project/" not in failed.message


def test_an_error_names_the_field_that_asked(client: Client) -> None:
    """The second finds the first one's refusal in the cache."""
    for param in ("response_format", "structured_outputs"):
        failed = error_of(client, Constraint("regex", "(b", param=param))
        assert failed.param == param
        assert failed.message.startswith(f"'{param}' cannot be followed")


def test_a_padded_vocabulary(tmp_path: Path) -> None:
    """The model has more ids than the tokenizer, and no multiple of 32: they never come."""
    padded = make_base(tmp_path / "padded", vocab_size=VOCAB_SIZE + 90)
    client = Patient(make_engine(padded))
    for seed in range(3):
        tokens = client.ask(PROMPT[:5], held_to(schema(PERSON), seed=seed))
        assert max(tokens) == EOS_TOKEN_ID


def test_control_tokens_never_come(client: Client) -> None:
    """<|im_start|> is text that a JSON string could have; as a token it is none of the answer's."""
    params = held_to(Constraint("regex", ".{40}"), logit_bias=((257, 100.0), (256, 100.0)))
    assert not {256, 257} & set(client.ask(PROMPT[:5], params))


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    bare = make_base(tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    failed = error_of(Patient(make_engine(bare)), DATE)
    assert (failed.code, failed.param) == (ErrorCode.UNSUPPORTED_PARAMETER, "response_format")
    assert "tokenizer" in failed.message


def test_offline(base: Path) -> None:
    engine = make_engine(base)
    both = [held_to(HELD), SamplingParams(4, temperature=0.0, ignore_eos=True)]
    held, free = engine.generate([[1, 2], [3, 4]], both)
    assert (len(held), len(free)) == (5, 4)
    with pytest.raises(EngineError, match="parenthesis") as refused:
        engine.generate([[1]], held_to(Constraint("regex", "(")))
    assert refused.value.param == "response_format"


def test_masks_cover_every_token(client: Client) -> None:
    """Against the compiler's own way of applying a mask."""
    import xgrammar

    entry = client.engine._grammars.entry(DATE)
    deadline = time.monotonic() + 30
    while not entry.is_done:
        assert time.monotonic() < deadline
    matcher = client.engine._grammars._matcher(entry, DATE)
    assert matcher.wait(10.0)
    logits = torch.zeros(1, VOCAB_SIZE)
    xgrammar.apply_token_bitmask_inplace(logits, matcher.mask[None])
    assert torch.equal(allowed_tokens(matcher.mask[None], VOCAB_SIZE), torch.isfinite(logits))
    assert int(torch.isfinite(logits).sum()) == 10
