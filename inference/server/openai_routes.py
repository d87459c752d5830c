"""/v1/chat/completions and /v1/completions."""

import time
import uuid
from contextlib import closing
from dataclasses import replace

from aiohttp import web

from inference.errors import EngineError, ErrorCode
from inference.server import chosen_calls
from inference.server.answer import Answer
from inference.server.attempt import read_attempt
from inference.server.body import read_fields
from inference.server.choice import ChoiceRules
from inference.server.echo import Echo
from inference.server.generation import Generation, Plan
from inference.server.model_folder import ModelFolder
from inference.server.prompts import (
    encode_chat,
    encode_chat_by,
    encode_prompts,
    prompt_offsets,
    prompt_text,
)
from inference.server.replica import REPLICA, Loaded, Replica, resolve
from inference.server.requests import (
    ChatRequest,
    CompletionRequest,
    parse_chat,
    parse_completion,
)
from inference.server.responses import Envelope, Json
from inference.server.sampling import Sampling
from inference.server.shapes import CallShape, ChatShape, ChosenCallShape, CompletionShape, Shape
from inference.server.share import read_share


async def chat_completions(request: web.Request) -> web.StreamResponse:
    replica = request.app[REPLICA]
    loaded = replica.ready()
    body = await read_fields(request)
    chat = parse_chat(body, loaded.folder.spec.vocab_size)
    name, digest = resolve(chat.target, replica, loaded.engine)
    prompt = await _chat_prompt(chat, replica, loaded)
    max_tokens = _room(loaded, prompt, chat.max_tokens, "messages")
    vocabulary = loaded.folder.tokenizer.vocabulary
    plan = _plan(loaded, (prompt,), max_tokens, chat, digest, vocabulary.strips_first_space)
    shape = _chat_shape(chat, loaded.folder)
    return await _answer(request, replica, loaded, plan, shape, chat, name)


async def _chat_prompt(chat: ChatRequest, replica: Replica, loaded: Loaded) -> tuple[int, ...]:
    try:
        prompt = await _encode(chat, replica, loaded, chat.tools.shown)
    except EngineError as error:
        if error.param != "tools" or not chat.tools.forced:
            raise
        # The template cannot show them. A call that must come is one all the same.
        prompt = await _encode(chat, replica, loaded, None)
    if chat.max_prompt_tokens is not None and len(prompt) > chat.max_prompt_tokens:
        message = (
            f"The chat template makes {len(prompt)} tokens of the messages; at most "
            f"{chat.max_prompt_tokens} were reserved for them."
        )
        raise EngineError(ErrorCode.INVALID_REQUEST, message, "messages")
    return prompt


async def _encode(
    chat: ChatRequest, replica: Replica, loaded: Loaded, tools: list[Json] | None
) -> tuple[int, ...]:
    if chat.template is None:
        return await encode_chat(loaded.folder, chat.messages, tools)
    return await encode_chat_by(
        chat.template, replica.templates, loaded.folder, chat.messages, tools
    )


def _chat_shape(chat: ChatRequest, folder: ModelFolder) -> Shape:
    vocabulary, wants_logprobs = folder.tokenizer.vocabulary, chat.num_logprobs is not None
    names = chat.tools.forced
    if names:
        return CallShape(vocabulary, wants_logprobs, names[0] if len(names) == 1 else None)
    template = chat.template or (folder.template.source if folder.template else "")
    if chat.tools.shown and chosen_calls.OPENING in template:
        return ChosenCallShape(vocabulary, wants_logprobs, chat.tools.max_calls)
    return ChatShape(vocabulary, wants_logprobs)


async def completions(request: web.Request) -> web.StreamResponse:
    replica = request.app[REPLICA]
    loaded = replica.ready()
    body = await read_fields(request)
    completion = parse_completion(body, loaded.folder.spec.vocab_size)
    name, digest = resolve(completion.target, replica, loaded.engine)
    prompts = await encode_prompts(loaded.folder.tokenizer, completion.prompts)
    for prompt in prompts:
        _room(loaded, prompt, completion.max_tokens, "prompt")
    plan = _plan(loaded, prompts, completion.max_tokens, completion, digest, False)
    vocabulary = loaded.folder.tokenizer.vocabulary
    echoes = [
        prompt_text(loaded.folder.tokenizer, prompt) if completion.echo else ""
        for prompt in completion.prompts
    ]
    is_scored = completion.echo and completion.num_logprobs is not None
    if is_scored:
        starts = await prompt_offsets(loaded.folder.tokenizer, echoes, prompts)
        plan = replace(plan, echo=lambda at: Echo(echoes[at], prompts[at], starts[at]))
    shape = CompletionShape(vocabulary, completion.num_logprobs is not None, echoes, is_scored)
    return await _answer(request, replica, loaded, plan, shape, completion, name)


async def _answer(
    request: web.Request,
    replica: Replica,
    loaded: Loaded,
    plan: Plan,
    shape: Shape,
    asked: ChatRequest | CompletionRequest,
    name: str,
) -> web.StreamResponse:
    envelope = Envelope(
        id=shape.id_prefix + uuid.uuid4().hex,
        created=int(time.time()),
        model=name,
        fingerprint=plan.digest or "base",
    )
    share, attempt = read_share(request, asked.cache_salt), read_attempt(request)
    generation = Generation(plan, share, loaded.engine, replica.bridge, replica.metrics)
    # Closed also when the client left: the handler is cancelled then.
    with replica.usage_log.follow(attempt, generation), closing(generation):
        generation.submit()
        return await Answer(envelope, shape, asked.streaming, generation).send(request)


def _plan(
    loaded: Loaded,
    prompts: tuple[tuple[int, ...], ...],
    max_tokens: int,
    asked: ChatRequest | CompletionRequest,
    digest: str | None,
    strips_first_space: bool,
) -> Plan:
    sampling: Sampling = asked.sampling
    samplings = tuple(sampling.build(max_tokens, choice) for choice in range(sampling.n))
    ends = samplings[0].stop_token_ids
    if not samplings[0].ignore_eos:
        ends += loaded.folder.spec.eos_token_ids
    rules = ChoiceRules(
        token_bytes=loaded.folder.tokenizer.vocabulary.token_bytes,
        end_ids=frozenset(ends),
        stops=sampling.stops,
        min_tokens=sampling.min_tokens,
        # A grammar says what the text is, to its first character.
        strips_first_space=strips_first_space and samplings[0].constraint is None,
    )
    field = "messages" if isinstance(asked, ChatRequest) else "prompt"
    return Plan(prompts, samplings, rules, digest, asked.cache_salt, field)


def _room(loaded: Loaded, prompt: tuple[int, ...], max_tokens: int | None, param: str) -> int:
    """Tokens to generate: those asked for, else all that fit. Raises EngineError when too many."""
    limit = loaded.max_model_len
    if max_tokens is None and len(prompt) < limit:
        return limit - len(prompt)
    total = len(prompt) + (1 if max_tokens is None else max_tokens)
    if total <= limit and max_tokens is not None:
        return max_tokens
    message = (
        f"This model's maximum context length is {limit} tokens. However, you requested {total} "
        f"tokens ({len(prompt)} in the {param}, {total - len(prompt)} in the completion). "
        f"Please reduce the length of the {param} or completion."
    )
    raise EngineError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, param)
