"""The front's view of a model directory: tokenizer, chat template, special token names."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.chat_template import ChatTemplate, load_chat_template, load_special_tokens
from inference.model_spec import ModelError, ModelSpec
from inference.server.fields import invalid
from inference.server.tokenizer import Tokenizer

NO_TEMPLATE = "This model has no chat template; use /v1/completions."


@dataclass(frozen=True)
class ModelFolder:
    spec: ModelSpec
    tokenizer: Tokenizer
    template: ChatTemplate | None
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str) -> "ModelFolder":
        """Raises ModelError: what is missing or not understood."""
        folder = Path(path)
        spec = ModelSpec.load(folder)
        config = _tokenizer_config(folder)
        special = load_special_tokens(config)
        tokenizer = Tokenizer.load(folder, special.get("bos_token"))
        return cls(spec, tokenizer, load_chat_template(folder, config), special)

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool = True,
    ) -> tuple[int, ...]:
        """Raises EngineError (400) when there is no template or it refuses the messages."""
        if self.template is None:
            raise invalid("messages", NO_TEMPLATE)
        control = self.tokenizer.control_tokens()
        shown = (control.hide(messages), control.hide(tools))
        rendered = self.template.render(*shown, add_generation_prompt)
        return tuple(self.tokenizer.encode_chat(rendered, control))


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    try:
        value = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return value
