"""Prompts → token ids, off the event loop when long."""

import asyncio
from collections.abc import Sequence
from typing import Any

from inference.server.echo import offsets
from inference.server.fields import invalid
from inference.server.model_folder import ModelFolder
from inference.server.requests import Prompt
from inference.server.template_process import TemplateProcess
from inference.server.tokenizer import Tokenizer

# Longer texts are tokenised in a thread beside the event loop: they take 20 ms and more.
MAX_INLINE_CHARS = 50_000


async def encode_chat(
    folder: ModelFolder,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    add_generation_prompt: bool = True,
) -> tuple[int, ...]:
    """Raises EngineError (400) when the template refuses the messages."""
    num_chars = sum(len(message.get("content") or "") for message in messages)
    if num_chars > MAX_INLINE_CHARS:
        return await asyncio.to_thread(folder.encode_chat, messages, tools, add_generation_prompt)
    return folder.encode_chat(messages, tools, add_generation_prompt)


async def encode_chat_by(
    source: str,
    templates: TemplateProcess,
    folder: ModelFolder,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
) -> tuple[int, ...]:
    """By a template that is not the model's own. Raises EngineError (400)."""
    control = folder.tokenizer.control_tokens()
    shown = (control.hide(messages), control.hide(tools))
    rendered = await templates.render(source, folder.special_tokens, *shown)
    if len(rendered) > MAX_INLINE_CHARS:
        ids = await asyncio.to_thread(folder.tokenizer.encode_chat, rendered, control)
    else:
        ids = folder.tokenizer.encode_chat(rendered, control)
    if not ids:
        raise invalid("chat_template", "The chat template makes no tokens of the messages.")
    return tuple(ids)


async def encode_prompts(
    tokenizer: Tokenizer, prompts: tuple[Prompt, ...]
) -> tuple[tuple[int, ...], ...]:
    """Raises EngineError (400) for a prompt without a token: there is nothing to continue."""
    if sum(map(len, prompts)) > MAX_INLINE_CHARS:
        return await asyncio.to_thread(_encode_all, tokenizer, prompts)
    return _encode_all(tokenizer, prompts)


def _encode_all(tokenizer: Tokenizer, prompts: tuple[Prompt, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(_encode(tokenizer, prompt) for prompt in prompts)


def _encode(tokenizer: Tokenizer, prompt: Prompt) -> tuple[int, ...]:
    ids = tuple(tokenizer.encode_prompt(prompt)) if isinstance(prompt, str) else prompt
    if not ids:
        raise invalid("prompt", "The prompt has no tokens; send at least one.")
    return ids


def prompt_text(tokenizer: Tokenizer, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else tokenizer.vocabulary.text(prompt)


async def prompt_offsets(
    tokenizer: Tokenizer, texts: Sequence[str], prompts: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Where in its text each token of each prompt begins."""
    pairs = list(zip(texts, prompts, strict=True))
    if sum(map(len, texts)) > MAX_INLINE_CHARS:
        return await asyncio.to_thread(
            lambda: [offsets(tokenizer.vocabulary, *pair) for pair in pairs]
        )
    return [offsets(tokenizer.vocabulary, *pair) for pair in pairs]
