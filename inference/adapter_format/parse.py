"""adapter_config.json → AdapterConfig. Only JSON is read: nothing is imported, opened or fetched.

What would change the answers and is not served is refused by name; what cannot is a warning. The
reference is PEFT 0.21.
"""

import json
import re
from collections.abc import Callable
from typing import TypeVar

from inference.adapter_format.config import AdapterConfig, TargetRule
from inference.adapter_format.fields import Fields
from inference.adapter_format.invocation import read_invocation
from inference.adapter_format.pattern import MAX_PATTERN_COST, PatternError, compile_pattern
from inference.adapter_format.problem import Problem, clipped, shortened
from inference.adapter_format.unsupported import check_unsupported

MAX_CONFIG_BYTES = 1 << 20
MAX_NAMES = 4096
# All patterns of one config together, so that many legal ones cannot add up to a hang.
MAX_TOTAL_PATTERN_COST = 4 * MAX_PATTERN_COST

# PEFT's rule: a key covers whole dotted components at the end of the module path.
_KEY_WRAP = r"(.*\.)?({})$"
_EMBEDDINGS = ("lm_head", "embed_tokens", "embed_out", "wte", "word_embeddings")
_FUSED = {"qkv_proj": "q_proj, k_proj and v_proj", "gate_up_proj": "gate_proj and up_proj"}
_PLAIN_NAME = re.compile(r"\w+")

V = TypeVar("V", int, float)


def parse_config(raw: bytes) -> tuple[AdapterConfig | None, list[Problem], list[Problem]]:
    """(config, problems, warnings) of the raw file; no config exactly when there are problems."""
    decoded = _decode(raw)
    if isinstance(decoded, Problem):
        return None, [decoded], []
    fields = Fields(decoded)
    check_unsupported(fields)
    config = _read(fields)
    problems, warnings = shortened(fields.problems), shortened(fields.warnings)
    return (None if problems else config), problems, warnings


def _decode(raw: bytes) -> dict[str, object] | Problem:
    if len(raw) > MAX_CONFIG_BYTES:
        return _not_a_config(f"larger than {MAX_CONFIG_BYTES} bytes", f"{len(raw)} bytes")
    try:
        value = json.loads(
            raw.decode(), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        return _not_a_config("not valid JSON", str(error))
    if not isinstance(value, dict):
        return _not_a_config("not a JSON object", type(value).__name__)
    return value


def _not_a_config(message: str, found: str) -> Problem:
    where, expected = "adapter_config.json", "one JSON object in UTF-8"
    return Problem("invalid_config", f"{where}: {message}", where, expected, clipped(found))


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {clipped(key)!r} stands twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _read(fields: Fields) -> AdapterConfig | None:
    rank = fields.as_rank("r", fields.required("r", 8))
    alpha = fields.as_alpha("lora_alpha", fields.required("lora_alpha", 8))
    rank_pattern = _pattern_mapping(fields, "rank_pattern", fields.as_rank)
    alpha_pattern = _pattern_mapping(fields, "alpha_pattern", fields.as_alpha)
    targets, invocation = _target_rule(fields), read_invocation(fields)
    use_rslora, base_model = fields.flag("use_rslora"), fields.text("base_model_name_or_path")
    if alpha == 0 and not alpha_pattern:
        fields.warn("no_effect", "lora_alpha is 0: the adapter changes nothing", "lora_alpha", 0)
    if rank is None or alpha is None:
        return None
    return AdapterConfig(
        rank,
        alpha,
        use_rslora,
        rank_pattern,
        alpha_pattern,
        targets,
        base_model,
        invocation,
    )


def _pattern_mapping(
    fields: Fields, name: str, read: Callable[[str, object], V | None]
) -> tuple[tuple[re.Pattern[str], V], ...]:
    entries = fields.mapping(name)
    if len(entries) > MAX_NAMES:
        fields.wrong_type(name, f"at most {MAX_NAMES} patterns", f"{len(entries)} patterns")
        return ()
    found, total_cost = [], 0
    for key, raw_value in entries.items():
        pattern, cost = _pattern(fields, name, key, _KEY_WRAP)
        value = read(f"{name}[{clipped(key, 80)}]", raw_value)
        total_cost += cost
        if pattern is not None and value is not None:
            found.append((pattern, value))
    if total_cost > MAX_TOTAL_PATTERN_COST:
        message = f"{name}: the patterns together could be slow"
        fields.refuse("unsupported_pattern", message, name, "fewer repetitions", len(entries))
        return ()
    return tuple(found)


def _pattern(
    fields: Fields, where: str, source: str, wrap: str
) -> tuple[re.Pattern[str] | None, int]:
    try:
        return compile_pattern(source, wrap)
    except PatternError as error:
        message = f"{where}: pattern refused: {clipped(str(error))}"
        fields.refuse("unsupported_pattern", message, where, "a plain regular expression", source)
        return None, 0


def _target_rule(fields: Fields) -> TargetRule:
    value = fields.values.get("target_modules")
    names, pattern, all_linear = None, None, False
    if value is None:
        message = "target_modules is missing or null: derived from the tensors"
        fields.warn("derived_targets", message, "target_modules")
    elif isinstance(value, str):
        all_linear = value.lower() == "all-linear"
        pattern = None if all_linear else _pattern(fields, "target_modules", value, "{}")[0]
        _refuse_layers_beside_pattern(fields)
    else:
        names = _target_names(fields, value)
    excluded_names, excluded_pattern = _excluded(fields)
    layers, parents = _layers(fields)
    return TargetRule(names, pattern, all_linear, excluded_names, excluded_pattern, layers, parents)


def _target_names(fields: Fields, value: object) -> frozenset[str]:
    names = fields.strings("target_modules", value, MAX_NAMES)
    if value == []:
        fields.wrong_type("target_modules", "at least one module name", value)
    for name in names:
        last = name.rpartition(".")[2]
        if last in _EMBEDDINGS:
            message = f"target_modules: LoRA on {last} is not supported"
            fields.refuse("unsupported_embedding", message, "target_modules", "projections", name)
        if last in _FUSED:
            message = f"target_modules: fused {last} is not supported; split it into {_FUSED[last]}"
            fields.refuse("unsupported_fused_module", message, "target_modules", _FUSED[last], name)
    return frozenset(names)


def _refuse_layers_beside_pattern(fields: Fields) -> None:
    for name in ("layers_to_transform", "layers_pattern"):
        if fields.values.get(name) is not None:
            message = f"{name}: only together with a list of target_modules, as in PEFT"
            fields.refuse("invalid_field", message, name, "null", fields.values[name])


def _excluded(fields: Fields) -> tuple[frozenset[str], re.Pattern[str] | None]:
    value = fields.values.get("exclude_modules")
    if isinstance(value, str):
        return frozenset(), _pattern(fields, "exclude_modules", value, "{}")[0] if value else None
    if value is None:
        return frozenset(), None
    return frozenset(fields.strings("exclude_modules", value, MAX_NAMES)), None


def _layers(fields: Fields) -> tuple[frozenset[int] | None, frozenset[str]]:
    value = fields.values.get("layers_to_transform")
    indexes = value if isinstance(value, list) else [] if value is None else [value]
    good = [i for i in indexes if isinstance(i, int) and not isinstance(i, bool) and i >= 0]
    if len(good) != len(indexes):
        fields.wrong_type("layers_to_transform", "a layer number or a list of them", value)
    return (frozenset(good) or None), _layer_parents(fields)


def _layer_parents(fields: Fields) -> frozenset[str]:
    value = fields.values.get("layers_pattern")
    names = [value] if isinstance(value, str) and value else value or []
    found = fields.strings("layers_pattern", names, 16)
    for name in found:
        if not _PLAIN_NAME.fullmatch(name):
            fields.wrong_type("layers_pattern", "plain names such as layers", name)
    return frozenset(found)
