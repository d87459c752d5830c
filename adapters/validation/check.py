"""All checks of one upload, in order; every reason is collected, not only the first."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adapters.validation.archive import unpack
from adapters.validation.join import ARCHIVE, join_parts
from adapters.validation.members import WANTED
from adapters.validation.progress import Tell, unheard
from adapters.validation.template_file import find_template
from adapters.validation.values import check_effect, check_finite, scan
from inference.adapter_format import (
    MAX_CONFIG_BYTES,
    AdapterConfig,
    AdapterPlan,
    FormatError,
    Problem,
    TensorInfo,
    clipped,
    digest,
    match_tensors,
    parse_config,
    read_header,
    shortened,
)
from inference.model_spec import ModelSpec


@dataclass(frozen=True)
class CheckRequest:
    """folder: the upload's quarantine. max_rank: what this tenant may and this fleet can serve."""

    folder: str
    base_model_path: str
    base_model_name: str
    max_rank: int
    max_bytes: int


@dataclass
class Verdict:
    """digest, rank, size_bytes: of a sound upload, else None. All of it is JSON.

    chat_template: {file, source} of the one that came with it and has still to be tried.
    """

    problems: list[dict[str, str]] = field(default_factory=list)
    warnings: list[dict[str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    digest: str | None = None
    rank: int | None = None
    size_bytes: int | None = None
    chat_template: dict[str, str] | None = None

    def add(self, problems: list[Problem], warnings: list[Problem]) -> None:
        self.problems += [problem.as_dict() for problem in shortened(problems)]
        self.warnings += [warning.as_dict() for warning in shortened(warnings)]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(request: CheckRequest, tell: Tell = unheard) -> Verdict:
    """Raises nothing for a client's mistake; ModelError when our base model cannot be read."""
    verdict, folder = Verdict(), Path(request.folder)
    spec = ModelSpec.load(request.base_model_path)
    try:
        tell("joining", 0.0)
        join_parts(folder)
        if (folder / ARCHIVE).exists():
            tell("unpacking", 0.0)
            verdict.add([], unpack(folder / ARCHIVE, folder, request.max_bytes))
        _find_template(verdict, folder, request)
        _check_files(verdict, folder, spec, request, tell)
    except FormatError as error:
        verdict.add(error.problems, [])
    return verdict


def _find_template(verdict: Verdict, folder: Path, request: CheckRequest) -> None:
    found, problems = find_template(folder, request.base_model_path)
    verdict.add(problems, [])
    verdict.chat_template = None if found is None else asdict(found)


def _check_files(
    verdict: Verdict, folder: Path, spec: ModelSpec, request: CheckRequest, tell: Tell
) -> None:
    tell("header", 0.0)
    config_path, weights_path = (folder / name for name in WANTED)
    with config_path.open("rb") as file:
        raw = file.read(MAX_CONFIG_BYTES + 1)
    config, problems, warnings = parse_config(raw)
    verdict.add(problems, warnings)
    if config is not None:
        verdict.add([], _other_base(config, request.base_model_name))
    # A broken header leaves the config's problems standing beside its own.
    header = read_header(weights_path)
    plan = _check_tensors(verdict, config, header, spec, request.max_rank)
    stats = scan(weights_path, header, tell)
    verdict.add(check_finite(stats), [])
    if plan is not None:
        verdict.add(*check_effect(plan, stats))
        verdict.facts = _facts(plan, header, spec)
    if config is not None and plan is not None and not verdict.problems:
        tell("digest", 0.0)
        verdict.digest, verdict.rank = digest(raw, weights_path), plan.rank
        verdict.size_bytes = len(raw) + weights_path.stat().st_size


def _check_tensors(
    verdict: Verdict,
    config: AdapterConfig | None,
    header: Mapping[str, TensorInfo],
    spec: ModelSpec,
    max_rank: int,
) -> AdapterPlan | None:
    if config is None:
        return None
    plan, problems, warnings = match_tensors(config, header, spec, max_rank)
    verdict.add(problems, warnings)
    return plan


def _other_base(config: AdapterConfig, base_model_name: str) -> list[Problem]:
    """A name proves nothing: mirrors and local paths are normal, so this only warns."""
    named = config.base_model.rstrip("/").rpartition("/")[2].lower()
    if not named or named == base_model_name.lower():
        return []
    message = "trained on a base model of another name; the shapes decide, the answers may not fit"
    where, found = "base_model_name_or_path", clipped(config.base_model)
    return [Problem("other_base_model", message, where, base_model_name, found)]


def _facts(plan: AdapterPlan, header: Mapping[str, TensorInfo], spec: ModelSpec) -> dict[str, Any]:
    ranks = Counter(module.rank for module in plan.modules.values())
    return {
        "rank": plan.rank,
        "ranks": {str(rank): num_modules for rank, num_modules in sorted(ranks.items())},
        "num_modules": len(plan.modules),
        "num_base_modules": len(spec.lora_modules()),
        "num_tensors": len(header),
        "num_parameters": sum(_size(info.shape) for info in header.values()),
        "targets": sorted({name.rpartition(".")[2] for name in plan.modules}),
        "dtypes": sorted({info.dtype for info in header.values()}),
        "scales": sorted({round(module.scale, 9) for module in plan.modules.values()})[:16],
        **({"invocation_tokens": list(plan.invocation)} if plan.invocation else {}),
    }


def _size(shape: tuple[int, ...]) -> int:
    product = 1
    for side in shape:
        product *= side
    return product
