"""The chat template that comes with an upload: where transformers keeps one beside a model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.validation.template import MAX_TEMPLATE_CHARS
from inference.adapter_format import Problem, clipped
from inference.chat_template import template_source

# The first that has one is meant, as transformers reads them.
TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
# A tokenizer_config.json lists its added tokens too.
MAX_FILE_BYTES = 4 << 20
KEY = "chat_template"


@dataclass(frozen=True)
class TemplateFile:
    file: str
    source: str


class _Unreadable(Exception):
    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, got {found}")
        self.expected, self.found = expected, found


def find_template(folder: Path, base_model_path: str) -> tuple[TemplateFile | None, list[Problem]]:
    """None where there is none, or only the base model's own."""
    for name in TEMPLATE_FILES:
        if not (folder / name).is_file():
            continue
        try:
            source = _read(folder / name)
        except _Unreadable as error:
            return None, [bad_template(name, str(error), error.expected, error.found)]
        if source:
            is_base = source.rstrip("\n") == _base_source(base_model_path).rstrip("\n")
            return None if is_base else TemplateFile(name, source), []
    return None, []


def bad_template(name: str, reason: str, expected: str, found: str = "") -> Problem:
    message = (
        f"{name}: {reason}. Correct the chat template, or leave it out: the version is then "
        "served with the base model's, or with its serving profile's"
    )
    return Problem("bad_chat_template", message, name, expected, found)


def _read(path: Path) -> str:
    """ "" for none in it."""
    with path.open("rb") as file:
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise _Unreadable(f"at most {MAX_FILE_BYTES} bytes", "more")
    try:
        text = raw.decode("utf-8")
        found = text if path.suffix == ".jinja" else _of_json(json.loads(text))
    except UnicodeDecodeError:
        raise _Unreadable("UTF-8 text", "other bytes") from None
    except (ValueError, RecursionError) as error:
        raise _Unreadable("JSON", clipped(str(error))) from None
    if len(found) > MAX_TEMPLATE_CHARS:
        raise _Unreadable(f"at most {MAX_TEMPLATE_CHARS} characters", f"{len(found)}")
    return found


def _of_json(values: Any) -> str:
    """A text, or a list of named ones, of which "default" is meant."""
    if not isinstance(values, dict):
        raise _Unreadable("a JSON object", type(values).__name__)
    found = values.get(KEY)
    if isinstance(found, list):
        found = _default(found)
    if found is not None and not isinstance(found, str):
        raise _Unreadable("text, or a list of named templates", type(found).__name__)
    return found or ""


def _default(listed: list[Any]) -> Any:
    named = {str(one.get("name")): one.get("template") for one in listed if isinstance(one, dict)}
    if listed and "default" not in named:
        raise _Unreadable("a template named 'default'", clipped(", ".join(named)) or "no names")
    return named.get("default")


def _base_source(base_model_path: str) -> str:
    path = Path(base_model_path) / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return template_source(Path(base_model_path), config) or ""
