"""Config, tensors and base model against each other: all consumed, all present, all fitting."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from inference.adapter_format.config import AdapterConfig
from inference.adapter_format.header import TensorInfo
from inference.adapter_format.problem import Problem, clipped, shortened
from inference.adapter_format.unknown_tensor import unknown_tensor
from inference.model_spec import ModelSpec

DTYPES = frozenset({"F16", "BF16", "F32"})

_LORA_KEY = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")


class ModulePlan(NamedTuple):
    """What one linear layer adds: scale · B(A(x)). A is [rank, in], B is [out, rank]."""

    a_name: str
    b_name: str
    rank: int
    scale: float


@dataclass(frozen=True)
class AdapterPlan:
    """How to load an adapter: module path → its pair, in the model's order. Never empty.

    invocation: of an activated LoRA, the tokens from which on it applies.
    """

    modules: Mapping[str, ModulePlan]
    invocation: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        """The largest rank of a module."""
        return max(module.rank for module in self.modules.values())


@dataclass
class _Matching:
    config: AdapterConfig
    header: Mapping[str, TensorInfo]
    shapes: Mapping[str, tuple[int, int]]
    # module → half ("A" or "B") → tensor name
    pairs: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def refuse(
        self, code: str, message: str, where: str, expected: object = "", found: object = ""
    ) -> None:
        problem = Problem(code, message, clipped(where, 300), str(expected), clipped(found))
        self.problems.append(problem)


def match_tensors(
    config: AdapterConfig, header: Mapping[str, TensorInfo], spec: ModelSpec, max_rank: int
) -> tuple[AdapterPlan | None, list[Problem], list[Problem]]:
    """(plan, problems, warnings); the plan is None exactly when there are problems.

    max_rank: the largest effective rank that is served; patterns count.
    """
    matching = _Matching(config, header, spec.lora_modules())
    _assign(matching)
    _check_targets(matching)
    plans = {
        module: plan
        for module in matching.shapes
        if (plan := _check_module(matching, module)) is not None
    }
    _check_max_rank(matching, plans, max_rank)
    _check_invocation(matching, spec.vocab_size)
    problems, warnings = shortened(matching.problems), shortened(matching.warnings)
    found = None if problems else AdapterPlan(plans, config.invocation)
    return found, problems, warnings


def _assign(matching: _Matching) -> None:
    for name in matching.header:
        match = _LORA_KEY.fullmatch(name)
        if match is None or match[1] not in matching.shapes:
            matching.problems.append(unknown_tensor(name))
            continue
        halves = matching.pairs.setdefault(match[1], {})
        if match[2] in halves:
            message = f"two tensors are lora_{match[2]} of {match[1]}"
            matching.refuse("duplicate_tensor", message, name, "one", halves[match[2]])
        halves[match[2]] = name
    if not matching.header:
        message = "the file has no tensors: saved without gathering the shards?"
        matching.refuse("no_tensors", message, "adapter_model.safetensors", "LoRA pairs")


def _check_targets(matching: _Matching) -> None:
    targets = matching.config.targets
    covered = {module for module in matching.shapes if targets.covers(module)}
    for module in matching.pairs.keys() - covered:
        message = f"{module} has tensors but is not a target of the config"
        matching.refuse("untargeted_module", message, module, "a module that the config targets")
    if not targets.is_derived:
        for module in sorted(covered - matching.pairs.keys()):
            message = f"{module} is a target of the config but has no tensors"
            matching.refuse("missing_module", message, module, "lora_A and lora_B")
        _check_names_match(matching, covered)
    if not covered:
        message = "the config's targets match no linear layer of the base model"
        matching.refuse("no_module_matches", message, "target_modules", "one layer at least")
    _check_embeddings(matching)


def _check_names_match(matching: _Matching, covered: set[str]) -> None:
    for name in sorted(matching.config.targets.names or ()):
        if not any(module == name or module.endswith(f".{name}") for module in covered):
            message = f"target_modules: {clipped(name)} is no linear layer of the base model"
            matching.warnings.append(Problem("unmatched_target", message, "target_modules"))


def _check_embeddings(matching: _Matching) -> None:
    pattern = matching.config.targets.pattern
    for module in ("lm_head", "model.embed_tokens"):
        if pattern is not None and pattern.fullmatch(module):
            message = f"target_modules: the pattern covers {module}; LoRA on it is not supported"
            matching.refuse("unsupported_embedding", message, "target_modules", "projections")


def _check_module(matching: _Matching, module: str) -> ModulePlan | None:
    halves = matching.pairs.get(module)
    if halves is None:
        return None
    for half in ("A", "B"):
        if half not in halves:
            message = f"{module} has no lora_{half}"
            matching.refuse("half_pair", message, module, "lora_A and lora_B", *halves.values())
    sound = [_check_tensor(matching, module, half, name) for half, name in halves.items()]
    if len(sound) < 2 or not all(sound):
        return None
    config = matching.config
    return ModulePlan(halves["A"], halves["B"], config.rank_of(module), config.scale_of(module))


def _check_tensor(matching: _Matching, module: str, half: str, name: str) -> bool:
    info = matching.header[name]
    rank = matching.config.rank_of(module)
    num_in, num_out = matching.shapes[module]
    expected = (rank, num_in) if half == "A" else (num_out, rank)
    num_before = len(matching.problems)
    if info.dtype not in DTYPES:
        message = f"{name}: dtype {info.dtype} is not served"
        matching.refuse("unsupported_dtype", message, name, "F16, BF16 or F32", info.dtype)
    if info.shape != expected:
        code, message = _shape_fault(info.shape, expected, half)
        matching.refuse(code, f"{name}: {message}", name, list(expected), list(info.shape))
    return len(matching.problems) == num_before


def _shape_fault(shape: tuple[int, ...], expected: tuple[int, int], half: str) -> tuple[str, str]:
    if 0 in shape or not shape:
        return "empty_tensor", "empty: saved without gathering the shards?"
    if len(shape) != 2:
        return "wrong_shape", f"expected a matrix, found {len(shape)} dimensions"
    rank_axis = 0 if half == "A" else 1
    if shape[1 - rank_axis] != expected[1 - rank_axis]:
        return "wrong_shape", (
            f"shape {list(shape)} does not fit the base model, which needs {list(expected)}: "
            "trained on another base?"
        )
    return "rank_mismatch", f"rank {shape[rank_axis]}, but the config says {expected[rank_axis]}"


def _check_invocation(matching: _Matching, vocab_size: int) -> None:
    where, beyond = "alora_invocation_tokens", max(matching.config.invocation, default=-1)
    if beyond >= vocab_size:
        message = f"{where}: token {beyond} is outside the base model's vocabulary of {vocab_size}"
        matching.refuse("wrong_invocation", message, where, f"below {vocab_size}", beyond)


def _check_max_rank(matching: _Matching, plans: Mapping[str, ModulePlan], max_rank: int) -> None:
    # Only of modules whose tensors agree: for the others the mismatch is the reason.
    rank, module = max(((plan.rank, name) for name, plan in plans.items()), default=(0, ""))
    if rank > max_rank:
        message = f"rank {rank} is above the limit of {max_rank}"
        matching.refuse("rank_too_high", message, module, f"at most {max_rank}", rank)
