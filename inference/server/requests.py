"""Bodies of /v1/chat/completions and /v1/completions, checked whole before anything happens."""

from dataclasses import dataclass
from typing import Any

from inference.server.constraint import CONSTRAINT_FIELDS
from inference.server.fields import Fields, invalid, unsupported, wrong_type
from inference.server.messages import parse_messages
from inference.server.sampling import (
    MAX_TOKENS,
    SAMPLING_FIELDS,
    Sampling,
    parse_max_tokens,
    parse_sampling,
    token_id,
)
from inference.server.tools import Tools, parse_tools

MAX_TOP_LOGPROBS = 20
MAX_PROMPTS = 64
MAX_TEMPLATE_CHARS = 1 << 16
DEFAULT_COMPLETION_TOKENS = 16

COMMON_FIELDS = SAMPLING_FIELDS.union(CONSTRAINT_FIELDS) | frozenset(
    (
        "model",
        "lora_path",
        "stream",
        "stream_options",
        "user",
        "cache_salt",
        "logprobs",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
    )
)
CHAT_FIELDS = COMMON_FIELDS | frozenset(
    (
        "messages",
        "chat_template",
        "max_prompt_tokens",
        "max_completion_tokens",
        "top_logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "modalities",
    )
)
COMPLETION_FIELDS = COMMON_FIELDS | frozenset(
    (
        "prompt",
        "echo",
        "suffix",
        "best_of",
    )
)
# OpenAI fields that would change the answer and are not offered: a clear refusal, unless null.
UNSUPPORTED_FIELDS = (
    "audio",
    "function_call",
    "functions",
    "guided_json",
    "guided_regex",
    "moderation",
    "prediction",
    "reasoning_effort",
    "verbosity",
    "web_search_options",
)

STREAM_OPTIONS = (
    "include_usage",
    "continuous_usage_stats",
    "include_obfuscation",
    "stream_interval",
)
MAX_STREAM_INTERVAL = 1024

Prompt = str | tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """Which weights a request asks for: model alone, or lora_path beside the base's name."""

    model: str
    lora_path: str | None


@dataclass(frozen=True)
class Streaming:
    """interval: tokens of one choice that wait for each other, to be one chunk; never the first."""

    enabled: bool
    include_usage: bool = False
    continuous_usage: bool = False
    interval: int = 1


@dataclass(frozen=True)
class ChatRequest:
    """template: instead of the model's own. max_prompt_tokens: more than these are refused."""

    target: Target
    messages: list[dict[str, Any]]
    tools: Tools
    template: str | None
    max_prompt_tokens: int | None
    max_tokens: int | None
    sampling: Sampling
    num_logprobs: int | None
    streaming: Streaming
    cache_salt: str


@dataclass(frozen=True)
class CompletionRequest:
    target: Target
    prompts: tuple[Prompt, ...]
    max_tokens: int
    echo: bool
    sampling: Sampling
    num_logprobs: int | None
    streaming: Streaming
    cache_salt: str


def parse_chat(body: Fields, vocab_size: int) -> ChatRequest:
    """Raises EngineError naming the field at fault."""
    _refuse_unknown(body, CHAT_FIELDS)
    _refuse_other_than_text(body)
    num_logprobs = _chat_logprobs(body)
    tools = parse_tools(body)
    return ChatRequest(
        target=parse_target(body),
        messages=parse_messages(body),
        tools=tools,
        template=body.string("chat_template", None, MAX_TEMPLATE_CHARS),
        max_prompt_tokens=body.integer("max_prompt_tokens", None, 1, MAX_TOKENS),
        max_tokens=parse_max_tokens(body, ("max_tokens", "max_completion_tokens"), lowest=1),
        sampling=parse_sampling(body, vocab_size, num_logprobs, call=tools.constraint),
        num_logprobs=num_logprobs,
        streaming=_streaming(body),
        cache_salt=_ignored_and_salt(body),
    )


def parse_completion(body: Fields, vocab_size: int) -> CompletionRequest:
    """Raises EngineError naming the field at fault."""
    _refuse_unknown(body, COMPLETION_FIELDS)
    num_logprobs = body.integer("logprobs", None, 0, MAX_TOP_LOGPROBS)
    echo = body.boolean("echo", False)
    max_tokens = parse_max_tokens(body, ("max_tokens",), lowest=0)
    if body.string("suffix", ""):
        raise unsupported("suffix", "'suffix' is not supported: nothing is filled in between.")
    sampling = parse_sampling(body, vocab_size, num_logprobs, scores_prompt=echo)
    if body.integer("best_of", sampling.n, 1, 128) != sampling.n:
        raise unsupported("best_of", "'best_of' must equal 'n': every choice is returned.")
    return CompletionRequest(
        target=parse_target(body),
        prompts=_prompts(body, vocab_size),
        max_tokens=DEFAULT_COMPLETION_TOKENS if max_tokens is None else max_tokens,
        echo=echo,
        sampling=sampling,
        num_logprobs=num_logprobs,
        streaming=_streaming(body),
        cache_salt=_ignored_and_salt(body),
    )


def parse_target(body: Fields) -> Target:
    return Target(body.required_string("model"), body.string("lora_path", None) or None)


def _refuse_unknown(body: Fields, known: frozenset[str]) -> None:
    for key in UNSUPPORTED_FIELDS:
        if body.get(key) is not None:
            raise unsupported(key, f"'{key}' is not supported.")
    body.refuse_others(known.union(UNSUPPORTED_FIELDS))


def _refuse_other_than_text(body: Fields) -> None:
    if body.array("modalities") not in (None, ["text"]):
        raise unsupported("modalities", "'modalities' must be [\"text\"].")


def _ignored_and_salt(body: Fields) -> str:
    """Checks the fields that cannot change an answer; returns the prefix cache's namespace."""
    for key in ("user", "safety_identifier", "prompt_cache_key"):
        body.string(key, None, max_chars=4096)
    body.obj("metadata")
    # Taken for false, as at OpenAI for those whose answers it must not keep.
    body.boolean("store", False)
    if body.string("service_tier", "auto") not in ("auto", "default"):
        raise unsupported("service_tier", '\'service_tier\' must be "auto" or "default".')
    return body.string("cache_salt", "", max_chars=1024)


def _chat_logprobs(body: Fields) -> int | None:
    is_wanted = body.boolean("logprobs", False)
    num_top = body.integer("top_logprobs", None, 0, MAX_TOP_LOGPROBS)
    if num_top is not None and not is_wanted:
        raise invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    return (num_top or 0) if is_wanted else None


def _streaming(body: Fields) -> Streaming:
    is_streamed = body.boolean("stream", False)
    options = body.obj("stream_options")
    if options is None:
        return Streaming(is_streamed)
    if not is_streamed:
        raise invalid("stream_options", "'stream_options' is only allowed when 'stream' is true.")
    options.refuse_others(STREAM_OPTIONS)
    # Padding against traffic analysis, which OpenAI's clients may switch; it is never added here.
    options.boolean("include_obfuscation", False)
    return Streaming(
        True,
        options.boolean("include_usage", False),
        options.boolean("continuous_usage_stats", False),
        options.integer("stream_interval", 1, 1, MAX_STREAM_INTERVAL),
    )


def _prompts(body: Fields, vocab_size: int) -> tuple[Prompt, ...]:
    value = body.get("prompt")
    if isinstance(value, str):
        return (value,)
    if value is None or value == []:
        raise invalid("prompt", "Missing required parameter: 'prompt'.")
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string, an array of strings, or token ids", value)
    if not isinstance(value[0], str | list):
        return (_ids(value, vocab_size),)
    if len(value) > MAX_PROMPTS:
        raise invalid("prompt", f"'prompt' has {len(value)} prompts; at most {MAX_PROMPTS}.")
    return tuple(_prompt(item, vocab_size) for item in value)


def _prompt(value: object, vocab_size: int) -> Prompt:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return _ids(value, vocab_size)
    raise wrong_type("prompt", "an array of strings or of arrays of token ids", value)


def _ids(values: list[Any], vocab_size: int) -> tuple[int, ...]:
    return tuple(token_id(value, "prompt", vocab_size) for value in values)
