"""Whether a tenant's chat template works, found out in the child on conversations it will meet."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.adapter_format import Problem
from inference.chat_template import ChatTemplate, load_special_tokens
from inference.errors import EngineError

MAX_TEMPLATE_CHARS = 65_536
# Digits: what a template does to letters leaves them as they are.
TEXT = "4711 0815"


@dataclass(frozen=True)
class TemplateRequest:
    """system_prompt: "" for none."""

    source: str
    system_prompt: str
    base_model_path: str


def check_template(request: TemplateRequest) -> dict[str, Any]:
    """{"problems": […]}, none for a sound template."""
    path = Path(request.base_model_path) / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    try:
        template = ChatTemplate(request.source, load_special_tokens(config))
        problems = [_problem(template, *one) for one in _conversations(request).items()]
    except EngineError as error:
        problems = [Problem("bad_template", error.message, "chat_template")]
    return {"problems": [one.as_dict() for one in problems if one is not None]}


def _conversations(request: TemplateRequest) -> dict[str, list[dict[str, Any]]]:
    system = [{"role": "system", "content": request.system_prompt}] if request.system_prompt else []
    asked = {"role": "user", "content": TEXT}
    answered = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"}]
    return {"one turn": [*system, asked], "two turns": [*system, *answered, asked]}


def _problem(template: ChatTemplate, name: str, messages: list[dict[str, Any]]) -> Problem | None:
    try:
        text = template.render(messages, None)
    except EngineError as error:
        message = f"a conversation of {name}: {error.message}"
        return Problem("bad_template", message, "chat_template")
    if TEXT not in text:
        message = f"a conversation of {name}: what the user says does not reach the model"
        return Problem("bad_template", message, "chat_template")
    return None
