"""A chat template, rendered as transformers renders it, in a sandbox. Torch-free.

The sandbox keeps a template from the machine, not from its time: `{% for %}` in `{% for %}` has no
end. So a model's own, which its operator chose, is rendered where it is needed; a tenant's is only
rendered in a process with limits (inference/server/template_child.py, adapters/validation).
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.errors import EngineError, ErrorCode
from inference.model_spec import ModelError

# What a template can raise on messages it was not made for; TypeError has its own treatment.
RENDER_ERRORS = (
    TemplateError,
    LookupError,
    AttributeError,
    ValueError,
    ArithmeticError,
    RecursionError,
)
SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class GenerationBlock(Extension):
    """{% generation %} marks the assistant's part for training; when serving it is plain text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without jinja's HTML escaping: a template writes a prompt, not a page."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = _environment()
        try:
            names = meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ModelError(f"chat template: line {error.lineno}: {error.message}") from error
        self.source = source
        self._takes_tools = "tools" in names
        self._special_tokens = special_tokens

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool = True,
    ) -> str:
        """add_generation_prompt: it ends where the assistant's answer begins.

        Raises EngineError naming messages (or tools) when the template refuses or cannot.
        """
        if tools and not self._takes_tools:
            message = "This model's chat template has no place for tools."
            raise EngineError(ErrorCode.UNSUPPORTED_PARAMETER, message, "tools")
        try:
            return self._render(messages, tools, add_generation_prompt)
        except TypeError as error:
            # Many templates join content without asking whether it is null.
            if all(message.get("content") is not None for message in messages):
                raise _cannot_render(error) from error
        filled = [message | {"content": message.get("content") or ""} for message in messages]
        try:
            return self._render(filled, tools, add_generation_prompt)
        except TypeError as error:
            raise _cannot_render(error) from error

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except RENDER_ERRORS as error:
            raise _cannot_render(error) from error


def _cannot_render(error: Exception) -> EngineError:
    reason = str(error)[:300] or type(error).__name__
    message = f"The model's chat template cannot render the messages: {reason}"
    return EngineError(ErrorCode.INVALID_REQUEST, message, "messages")


def load_special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token and its like from tokenizer_config.json, where each is a string or an object."""
    found: dict[str, str] = {}
    for key in SPECIAL_KEYS:
        value = config.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[key] = value
    return found


def load_chat_template(folder: Path, config: dict[str, Any]) -> ChatTemplate | None:
    source = template_source(folder, config)
    return None if source is None else ChatTemplate(source, load_special_tokens(config))


def template_source(folder: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's (of several, the one named "default")."""
    path = folder / "chat_template.jinja"
    source: Any = path.read_text("utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(source, list):
        source = {entry.get("name"): entry.get("template") for entry in source}.get("default")
    return source if isinstance(source, str) else None
