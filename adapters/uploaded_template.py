"""A chat template that came with an upload: tried as a profile's own, then the profile's first.

What a version was trained with is what it is asked with. A template that its tenant set in the
profile stays; the base model's own, sent along, is nothing (validation.template_file).
"""

from collections.abc import Callable
from typing import Any

from adapters.dialects import DIALECTS
from adapters.dialects.dialect import Ability
from adapters.models import AdapterVersion, Replica
from adapters.profile import RULES, set_profile, sha256_of
from adapters.template import try_template
from adapters.validation.progress import Progress
from adapters.validation.template_file import bad_template
from inference.adapter_format import Problem
from tenants import audit

EXPECTED = "a template that renders conversations of one turn and of two"


def try_uploaded(
    version: AdapterVersion, verdict: dict[str, Any], on_tick: Callable[[Progress | None], None]
) -> None:
    """Its reasons join the verdict's, which is then no longer sound. Raises ValidationCrashed."""
    if verdict["chat_template"] is None:
        return
    name, source = verdict["chat_template"]["file"], verdict["chat_template"]["source"]
    rule = RULES["chat_template"]
    if rule.holds(source):
        reasons = try_template(source, version.profile.get("system_prompt", ""), on_tick)
        problems = [bad_template(name, one, EXPECTED) for one in reasons]
    else:
        problems = [bad_template(name, "it cannot be kept", rule.expected, "a NUL or a surrogate")]
    if problems:
        verdict["problems"] += [one.as_dict() for one in problems]
        verdict["digest"] = None
    elif verdict["digest"] is not None:
        verdict["facts"]["chat_template"] = {"file": name, "sha256": sha256_of(source)}


def keep_uploaded(version: AdapterVersion, found: dict[str, str] | None) -> list[dict[str, str]]:
    """Into the profile, unless it has one; warnings. Within the transaction of its ready state."""
    rows = AdapterVersion.objects.select_for_update(of=("self",)).select_related("adapter")
    held = rows.filter(id=version.id).first()
    if found is None or held is None or held.profile.get("chat_template") == found["source"]:
        return []
    if "chat_template" in held.profile:
        return [_unused(found["file"], "the serving profile has another, which is kept")]
    replicas = list(Replica.objects.all())
    if replicas and not any(map(_applies_templates, replicas)):
        return [_unused(found["file"], "no replica of this house applies a version's own")]
    values = {**held.profile, "chat_template": found["source"]}
    set_profile(audit.system(version.tenant_id), held, values)
    return []


def _applies_templates(replica: Replica) -> bool:
    return Ability.CHAT_TEMPLATE in DIALECTS[replica.dialect].abilities


def _unused(name: str, reason: str) -> dict[str, str]:
    message = f"the chat template of {name} is not used: {reason}"
    return Problem("chat_template_unused", message, name).as_dict()
