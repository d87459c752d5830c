"""A version's serving profile: what its tenant wants of requests that do not say it themselves.

Beside the bytes, never part of them: it may change at any time, and the digest stays.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from rest_framework.request import Request

from adapters.models import Adapter, AdapterVersion
from adapters.transition import label
from adapters.validation.template import MAX_TEMPLATE_CHARS
from tenants import audit, events
from tenants.auth import Principal
from tenants.errors import ApiError

MAX_SYSTEM_PROMPT_CHARS = 32_768
# Beside a request's own, which may be as many.
MAX_STOPS = 4
MAX_STOP_CHARS = 1024
# What every JSON reader keeps exactly, browsers too.
MAX_SEED = 2**53 - 1
MAX_COUNT = 1_000_000


@dataclass(frozen=True)
class ServingProfile:
    """None and absent: not set, what the engine does by itself holds.

    sampling: values by their names in a request's body.
    """

    system_prompt: str | None = None
    chat_template: str | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    expected: str
    holds: Callable[[object], bool]


def _is_text(value: object, max_chars: int) -> bool:
    """PostgreSQL keeps no NUL, and nothing carries half a surrogate pair."""
    if not isinstance(value, str) or not 1 <= len(value) <= max_chars:
        return False
    return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)


def _text(max_chars: int) -> Rule:
    return Rule(f"text of 1 to {max_chars} characters", lambda value: _is_text(value, max_chars))


def _integer(low: int, high: int) -> Rule:
    def holds(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return Rule(f"an integer from {low} to {high}", holds)


def _number(low: float, high: float) -> Rule:
    def holds(value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return math.isfinite(value) and low <= value <= high

    return Rule(f"a number from {low:g} to {high:g}", holds)


def _are_stops(value: object) -> bool:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_STOPS:
        return False
    return all(_is_text(one, MAX_STOP_CHARS) for one in value)


SAMPLING_RULES = {
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "top_k": _integer(1, MAX_COUNT),
    "min_p": _number(0, 1),
    "repetition_penalty": _number(0.01, 10),
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "seed": _integer(0, MAX_SEED),
}
RULES = {
    "system_prompt": _text(MAX_SYSTEM_PROMPT_CHARS),
    "chat_template": _text(MAX_TEMPLATE_CHARS),
    "stop": Rule(
        f"an array of 1 to {MAX_STOPS} texts of 1 to {MAX_STOP_CHARS} characters", _are_stops
    ),
    "max_tokens": _integer(1, MAX_COUNT),
    **SAMPLING_RULES,
}


def read_profile(values: Mapping[str, Any]) -> ServingProfile | None:
    """What a row holds, as requests use it; None when nothing is set."""
    if not values:
        return None
    return ServingProfile(
        system_prompt=values.get("system_prompt"),
        chat_template=values.get("chat_template"),
        stop=tuple(values.get("stop", ())),
        max_tokens=values.get("max_tokens"),
        sampling={name: values[name] for name in SAMPLING_RULES if name in values},
    )


def check_profile(body: object) -> dict[str, Any]:
    """The values that are set. Raises ApiError 400 with every field that is wrong.

    Whether a chat template works is adapters.template's to find out.
    """
    if not isinstance(body, dict):
        raise _invalid([_problem("", "invalid", "an object", body)])
    given = {name: value for name, value in body.items() if value is not None}
    unknown = [
        _problem(name, "unknown", f"one of {', '.join(RULES)}", name)
        for name in given
        if name not in RULES
    ]
    wrong = [
        _problem(name, "invalid", RULES[name].expected, value)
        for name, value in given.items()
        if name in RULES and not RULES[name].holds(value)
    ]
    if unknown or wrong:
        raise _invalid(unknown + wrong)
    return given


def _problem(name: str, code: str, expected: str, value: object) -> dict[str, str]:
    found = repr(value)
    found = found if len(found) <= 80 else f"{found[:80]}…"
    message = f"Expected {expected}, got {found}."
    # A repr shows what cannot be sent, such as half a surrogate pair, in escapes.
    fields = {"field": name[:80], "code": code, "message": message}
    return {key: text.encode(errors="backslashreplace").decode() for key, text in fields.items()}


def _invalid(problems: list[dict[str, str]]) -> ApiError:
    message = "; ".join(f"{one['field'] or 'profile'}: {one['message']}" for one in problems[:8])
    return ApiError("invalid_profile", 400, message, details=problems[:64])


def set_profile(
    principal: Principal | audit.Actor,
    version: AdapterVersion,
    values: dict[str, Any],
    request: Request | None = None,
) -> None:
    """values: of check_profile; empty takes it away. Call inside the tenant's scope."""
    with transaction.atomic():
        held = AdapterVersion.objects.select_for_update().get(id=version.id)
        before = held.profile
        if before == values:
            return
        AdapterVersion.objects.filter(id=version.id).update(profile=values)
        audit.record(
            principal,
            "version.profile_changed",
            label(version),
            before or None,
            values or None,
            request,
        )
        told = {"adapter": version.adapter.name, "number": version.number}
        events.publish(version.tenant_id, "profile.changed", told)
    version.profile = values


def first_profile(adapter: Adapter) -> dict[str, Any]:
    """Of a new version: a copy of the active one's, so that retraining forgets no stop word.

    Not of a chat template that came with the active one's files: the new files bring their own.
    """
    active = adapter.active_version
    if active is None:
        return {}
    came = active.report["facts"].get("chat_template", {}).get("sha256")
    kept = dict(active.profile)
    if came and sha256_of(kept.get("chat_template", "")) == came:
        del kept["chat_template"]
    return kept


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
