"""A request body, as far as the gateway acts on it.

Typed here: model, lora_path, stream, stream_options, the token limits, n, the number of stop words
and the size of the prompt. Everything else is passed on as it came and judged by the engine, whose
4xx is relayed. null means absent.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from django.conf import settings

from tenants.errors import ApiError

Endpoint = Literal["chat.completions", "completions"]

# orjson itself stops at 1024 levels; no honest request nests deeper than a tool's JSON schema.
MAX_JSON_DEPTH = 64
MAX_MODEL_CHARS = 256
# OpenAI takes 4; editors that complete code send all the words of their template. A version's
# serving profile may add 4: the engine takes both together.
MAX_STOPS = 16
# The replica is asked with ours, so an unknown one would be lost. Obfuscation pads chunks against
# traffic analysis, which OpenAI's clients may switch; it is never added here.
STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")
# What a chat template may add to the messages' own JSON: a default system turn and the generation
# prompt.
TEMPLATE_OVERHEAD_TOKENS = 128
# Ours, set by the gateway alone: the KV namespace, the adapter's digest, the request's name.
INTERNAL_FIELDS = (
    *("cache_salt", "lora_path", "request_id", "rid", "priority"),
    "max_prompt_tokens",
)


@dataclass(frozen=True)
class Ask:
    """One validated request.

    num_sequences: choices over all prompts; body: what is sent on, less our fields.

    max_tokens: per sequence, None when the client named no limit. num_added_messages: before the
    client's own, of the version's serving profile.
    """

    endpoint: Endpoint
    model: str
    lora_path: str | None
    is_stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    num_sequences: int
    num_prompt_tokens_bound: int
    body: dict[str, Any]
    num_added_messages: int = 0


def bad_request(message: str, param: str | None = None, code: str = "invalid_request") -> ApiError:
    return ApiError(code=code, status=400, message=message, param=param)


def parse_json(raw: bytes | str) -> dict[str, Any]:
    """The body as an object.

    400 for anything that is not strict JSON (NaN, lone surrogates, bad UTF-8), and for a name that
    comes twice in one object.
    """
    if not raw.strip():
        raise bad_request("The request body is empty; expected a JSON object.")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        reason = str(error)[:120]
        raise bad_request(f"The request body is not valid JSON: {reason}.") from None
    if not isinstance(body, dict):
        raise bad_request(f"Expected a JSON object, got {json_type(body)}.")
    check_depth(body)
    check_names(raw, body)
    return body


def json_type(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    if value == []:
        return "an empty array"
    return names.get(type(value), "a number")


def check_depth(body: dict[str, Any]) -> None:
    level: list[Any] = [body]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise too_deep()


def too_deep() -> ApiError:
    return bad_request(f"The request body nests deeper than {MAX_JSON_DEPTH} levels.")


def check_names(raw: bytes | str, body: dict[str, Any]) -> None:
    """Of a name that comes twice the parser keeps the last: another model or limit, perhaps, than
    was meant. What is written as we write it has none; the rest is read again, which takes longer.
    """
    given = raw.encode() if isinstance(raw, str) else raw
    if orjson.dumps(body) == given:
        return
    try:
        json.loads(given, object_pairs_hook=unique, parse_int=str, parse_float=str)
    except RecursionError:
        # In a value that another of its name has hidden.
        raise too_deep() from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise bad_request(f"The request body has the name {name[:80]!r} twice in one object.")
        found[name] = value
    return found


def parse_ask(endpoint: Endpoint, body: dict[str, Any]) -> Ask:
    """Raises ApiError 400 naming the field at fault."""
    model = parse_model(body)
    is_stream = bool_field(body, "stream")
    include_usage, continuous_usage = parse_stream_options(body, is_stream)
    check_stops(body.get("stop"))
    refuse_template(body)
    chat = endpoint == "chat.completions"
    num_prompts, num_tokens = measure_messages(body) if chat else measure_prompt(body.get("prompt"))
    return Ask(
        endpoint=endpoint,
        model=model,
        lora_path=text_field(body, "lora_path"),
        is_stream=is_stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        max_tokens=parse_max_tokens(body, minimum=1 if chat else 0),
        num_sequences=num_prompts * parse_num_choices(body),
        num_prompt_tokens_bound=num_tokens,
        body={name: value for name, value in body.items() if name not in INTERNAL_FIELDS},
    )


def parse_model(body: dict[str, Any]) -> str:
    model = text_field(body, "model")
    if model is None:
        raise bad_request("You must provide a model parameter.", "model")
    return model


def text_field(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise bad_request(f"{name}: expected a string, got {json_type(value)}.", name)
    if not 0 < len(value) <= MAX_MODEL_CHARS:
        raise bad_request(f"{name}: expected 1 to {MAX_MODEL_CHARS} characters.", name)
    return value


def bool_field(body: dict[str, Any], name: str, param: str | None = None) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad_request(
            f"{param or name}: expected a boolean, got {json_type(value)}.", param or name
        )
    return value


def int_field(
    body: dict[str, Any], name: str, minimum: int, maximum: int | None = None
) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad_request(f"{name}: expected an integer, got {json_type(value)}.", name)
    if value < minimum or (maximum is not None and value > maximum):
        expected = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
        raise bad_request(f"{name}: expected {expected}, got {value}.", name)
    return value


def refuse_template(body: dict[str, Any]) -> None:
    if body.get("chat_template") is not None:
        message = "chat_template: not of a request; set it in the version's serving profile."
        raise bad_request(message, "chat_template", "unsupported_parameter")


def check_stops(stops: object) -> None:
    if isinstance(stops, list) and len(stops) > MAX_STOPS:
        raise bad_request(f"stop: expected at most {MAX_STOPS}, got {len(stops)}.", "stop")


def parse_stream_options(body: dict[str, Any], is_stream: bool) -> tuple[bool, bool]:
    options = body.get("stream_options")
    if options is None:
        return False, False
    if not isinstance(options, dict):
        raise bad_request(
            f"stream_options: expected an object, got {json_type(options)}.", "stream_options"
        )
    if not is_stream:
        raise bad_request("stream_options is only allowed when stream is true.", "stream_options")
    if unknown := sorted(options.keys() - set(STREAM_OPTIONS)):
        name = f"stream_options.{unknown[0][:100]}"
        message = f"Unrecognized request argument supplied: {name}"
        raise bad_request(message, name, "unsupported_parameter")
    wanted = {name: bool_field(options, name, f"stream_options.{name}") for name in STREAM_OPTIONS}
    return wanted["include_usage"], wanted["continuous_usage_stats"]


def parse_max_tokens(body: dict[str, Any], minimum: int) -> int | None:
    old = int_field(body, "max_tokens", minimum)
    new = int_field(body, "max_completion_tokens", minimum)
    if old is not None and new is not None and old != new:
        raise bad_request(
            f"max_tokens ({old}) and max_completion_tokens ({new}) differ; send one of them.",
            "max_completion_tokens",
        )
    return old if new is None else new


def parse_num_choices(body: dict[str, Any]) -> int:
    num_choices = int_field(body, "n", 1, settings.MAX_CHOICES) or 1
    best_of = int_field(body, "best_of", 1, settings.MAX_CHOICES) or 1
    return max(num_choices, best_of)


def measure_messages(body: dict[str, Any]) -> tuple[int, int]:
    """(1, token bound).

    The messages' JSON is never shorter than their text, nor its braces than a turn's markers.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        expected = "messages: expected a non-empty array"
        raise bad_request(f"{expected}, got {json_type(messages)}.", "messages")
    num_bytes = len(orjson.dumps([messages, body.get("tools")]))
    return 1, num_bytes + TEMPLATE_OVERHEAD_TOKENS


def measure_prompt(prompt: object) -> tuple[int, int]:
    """(number of prompts, token bound of all): a string, an array of strings, of token ids, or of
    id arrays.
    """
    if isinstance(prompt, str):
        return 1, len(prompt.encode()) + 1
    if not isinstance(prompt, list) or not prompt:
        expected = "prompt: expected a string or a non-empty array"
        raise bad_request(f"{expected}, got {json_type(prompt)}.", "prompt")
    if isinstance(prompt[0], int):
        return 1, len(prompt) + 1
    sizes = [len(part.encode()) if isinstance(part, str) else measure_ids(part) for part in prompt]
    return len(prompt), sum(sizes) + len(sizes)


def measure_ids(part: object) -> int:
    if not isinstance(part, list):
        raise bad_request(
            f"prompt: expected strings or arrays of token ids, got {json_type(part)}.", "prompt"
        )
    return len(part)
