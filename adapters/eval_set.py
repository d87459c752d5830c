"""Eval sets: JSON Lines of conversations or of prompts with their completions, checked whole.

Of a conversation the last turn, the assistant's, is what is scored. Lines marked "golden" are
answered too; if none is, the first few are.
"""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from rest_framework.request import Request

from adapters.evaluation_models import EVALUATION_IN_WORK
from adapters.models import Adapter, EvalSet, Evaluation
from adapters.transition import publish_adapter
from tenants import audit
from tenants.auth import Principal
from tenants.errors import ApiError

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
MAX_EXAMPLES = 200
MAX_LINE_CHARS = 32_768
MAX_MESSAGES = 64
MAX_GOLDEN = 8
NUM_DEFAULT_GOLDEN = 3
MAX_PROBLEMS = 20
ROLES = ("system", "developer", "user", "assistant")

Example = dict[str, Any]
# (field, what is wrong)
Wrong = tuple[str, str]


def parse(raw: bytes) -> list[Example]:
    """The examples, each with its line. Raises ApiError 400 with every line and field at fault."""
    problems: list[tuple[int, str, str]] = []
    examples = []
    for number, line in _lines(raw):
        example, wrong = _parse_line(line)
        problems += [(number, *one) for one in wrong]
        examples.append({"line": number, **example})
    num_golden = sum(bool(example.get("golden")) for example in examples)
    if num_golden > MAX_GOLDEN:
        problems.append((0, "golden", f"{num_golden} lines are; expected at most {MAX_GOLDEN}"))
    if problems:
        raise _invalid(problems)
    for example in examples[: NUM_DEFAULT_GOLDEN if num_golden == 0 else 0]:
        example["golden"] = True
    return examples


def _lines(raw: bytes) -> list[tuple[int, str]]:
    """Each that is not blank, with its number. Raises ApiError 400."""
    if len(raw) > MAX_BYTES:
        raise _invalid([(0, "", f"{len(raw)} bytes; expected at most {MAX_BYTES}")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = raw.count(b"\n", 0, error.start) + 1
        raise _invalid([(place, "", "not UTF-8")]) from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not 1 <= len(lines) <= MAX_EXAMPLES:
        raise _invalid([(0, "", f"{len(lines)} lines; expected 1 to {MAX_EXAMPLES}")])
    return lines


def _parse_line(line: str) -> tuple[Example, list[Wrong]]:
    if len(line) > MAX_LINE_CHARS:
        return {}, [("", f"{len(line)} characters; expected at most {MAX_LINE_CHARS}")]
    try:
        value = json.loads(line)
    # Deep nesting is a RecursionError, long integers are a ValueError.
    except (ValueError, RecursionError) as error:
        return {}, [("", f"not JSON: {str(error)[:100]}")]
    if not isinstance(value, dict):
        return {}, [("", "expected an object")]
    return value, _wrong_fields(value)


def _wrong_fields(value: Example) -> list[Wrong]:
    fields = ("messages",) if "messages" in value else ("prompt", "completion")
    wrong = [
        (name[:80], f"not known here; expected {' and '.join(fields)}, and golden if you like")
        for name in value
        if name not in (*fields, "golden")
    ]
    if not isinstance(value.get("golden", False), bool):
        wrong.append(("golden", "expected true or false"))
    if "messages" in value:
        wrong += _check_messages(value["messages"])
    else:
        wrong += [(name, _NO_TEXT) for name in fields if not is_text(value.get(name))]
    return wrong


_NO_TEXT = "expected a text that is not empty"


def is_text(value: object) -> bool:
    """PostgreSQL keeps no NUL, and nothing carries half a surrogate pair."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in value)


def _check_messages(messages: object) -> list[Wrong]:
    if not isinstance(messages, list) or not 2 <= len(messages) <= MAX_MESSAGES:
        return [("messages", f"expected an array of 2 to {MAX_MESSAGES} messages")]
    wrong = [one for index, message in enumerate(messages) for one in _check_turn(index, message)]
    last = messages[-1]
    if not wrong and last["role"] != "assistant":
        place = f"messages[{len(messages) - 1}].role"
        wrong.append((place, "expected assistant: the last turn is what is scored"))
    return wrong


def _check_turn(index: int, message: object) -> list[Wrong]:
    place = f"messages[{index}]"
    if not isinstance(message, dict):
        return [(place, "expected an object with role and content")]
    wrong = []
    if message.get("role") not in ROLES:
        wrong.append((f"{place}.role", f"expected one of {', '.join(ROLES)}"))
    if not is_text(message.get("content")):
        wrong.append((f"{place}.content", _NO_TEXT))
    others = message.keys() - {"role", "content"}
    return wrong + [(f"{place}.{str(name)[:80]}", "not known here") for name in sorted(others)]


def _invalid(problems: list[tuple[int, str, str]]) -> ApiError:
    details = [
        {"line": line, "field": _shown(field), "message": _shown(message)}
        for line, field, message in problems
    ]
    parts = [
        ": ".join(filter(None, (f"line {one['line']}" if one["line"] else "", *_words(one))))
        for one in details[:8]
    ]
    message = f"The eval set cannot be used: {'; '.join(parts)}."
    return ApiError(
        "invalid_eval_set", 400, message, param="content", details=details[:MAX_PROBLEMS]
    )


def _words(detail: dict[str, Any]) -> tuple[str, str]:
    return detail["field"], detail["message"]


def _shown(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def save_eval_set(
    principal: Principal, adapter: Adapter, raw: bytes, request: Request | None = None
) -> EvalSet:
    """The adapter's set from now on. Call inside the tenant's scope. Raises ApiError 400."""
    examples = parse(raw)
    with transaction.atomic():
        Adapter.objects.select_for_update().get(id=adapter.id)
        before = _replace_current(adapter)
        row = _row_of(adapter, raw, examples, audit.name_of(principal), is_current=True)
        after = {"sha256": row.sha256, "num_examples": row.num_examples}
        audit.record(principal, "eval_set.replaced", adapter.name, before, after, request)
        publish_adapter(adapter)
    return row


def remove_eval_set(principal: Principal, adapter: Adapter, request: Request | None = None) -> None:
    """The operator's default, if there is one, is used again."""
    with transaction.atomic():
        Adapter.objects.select_for_update().get(id=adapter.id)
        before = _replace_current(adapter)
        if before is None:
            return
        audit.record(principal, "eval_set.removed", adapter.name, before, None, request)
        publish_adapter(adapter)


def _replace_current(adapter: Adapter) -> dict[str, Any] | None:
    """Former sets go, but for those that a running evaluation reads."""
    current = adapter.eval_sets.filter(is_current=True).first()
    adapter.eval_sets.update(is_current=False)
    in_work = Evaluation.objects.filter(status__in=EVALUATION_IN_WORK, eval_set__isnull=False)
    needed = list(in_work.values_list("eval_set_id", flat=True))
    adapter.eval_sets.exclude(id__in=needed).delete()
    if current is None:
        return None
    return {"sha256": current.sha256, "num_examples": current.num_examples}


def _row_of(
    adapter: Adapter, raw: bytes, examples: list[Example], created_by: str, is_current: bool
) -> EvalSet:
    fields = {
        "examples": examples,
        "num_examples": len(examples),
        "num_golden": sum(bool(example.get("golden")) for example in examples),
        "size_bytes": len(raw),
        "created_by": created_by,
    }
    sha256 = hashlib.sha256(raw).hexdigest()
    row, _ = EvalSet.objects.get_or_create(
        tenant_id=adapter.tenant_id, adapter=adapter, sha256=sha256, defaults=fields
    )
    if is_current and not row.is_current:
        EvalSet.objects.filter(id=row.id).update(is_current=True)
        row.refresh_from_db()
    return row


def eval_set_of(adapter: Adapter) -> EvalSet | None:
    """The tenant's, else the operator's default; None without either."""
    current = adapter.eval_sets.filter(is_current=True).first()
    return current or _default_of(adapter)


def _default_of(adapter: Adapter) -> EvalSet | None:
    if not settings.EVAL_SET_PATH:
        return None
    try:
        raw = Path(settings.EVAL_SET_PATH).read_bytes()
        return _row_of(adapter, raw, parse(raw), "operator", is_current=False)
    except (OSError, ApiError) as error:
        # The operator's fault and no tenant's: to them it is as if there were none.
        log.error("EVAL_SET_PATH %s: %s", settings.EVAL_SET_PATH, error)
        return None
