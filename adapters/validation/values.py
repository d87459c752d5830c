"""The numbers themselves: finite, with an effect, and not so large that their product overflows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adapters.validation.progress import Tell, unheard
from inference.adapter_format import AdapterPlan, ModulePlan, Problem, TensorInfo

CHUNK_BYTES = 4 << 20
# The largest finite float32, and nearly that of bfloat16: the serving types.
MAX_DELTA = 3.38e38

_DTYPES: dict[str, npt.DTypeLike] = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}


@dataclass(frozen=True)
class TensorStats:
    """max_abs: over the finite values, 0.0 for a tensor of zeros or none."""

    num_nonfinite: int
    max_abs: float


def scan(
    path: Path, header: Mapping[str, TensorInfo], tell: Tell = unheard
) -> dict[str, TensorStats]:
    """Every tensor of a served dtype, read once in chunks of CHUNK_BYTES."""
    served = {name: info for name, info in header.items() if info.dtype in _DTYPES}
    num_bytes = sum(info.end - info.start for info in served.values())
    found, num_read = {}, 0
    with path.open("rb") as file:
        for name, info in served.items():
            tell("values", num_read / max(num_bytes, 1))
            found[name] = _scan_tensor(file, info)
            num_read += info.end - info.start
    return found


def _scan_tensor(file: Any, info: TensorInfo) -> TensorStats:
    num_nonfinite, max_abs = 0, 0.0
    for values in _chunks(file, info):
        finite = np.isfinite(values)
        num_bad = int(values.size - np.count_nonzero(finite))
        num_nonfinite += num_bad
        magnitudes = np.abs(values[finite] if num_bad else values)
        max_abs = max(max_abs, float(magnitudes.max(initial=0.0)))
    return TensorStats(num_nonfinite, max_abs)


def _chunks(file: Any, info: TensorInfo) -> Iterator[npt.NDArray[Any]]:
    file.seek(info.start)
    left = info.end - info.start
    while left > 0:
        raw = file.read(min(left, CHUNK_BYTES))
        if not raw:
            raise EOFError("the file became shorter while it was read")
        left -= len(raw)
        values = np.frombuffer(raw, np.dtype(_DTYPES[info.dtype]))
        # bfloat16 is the upper half of a float32.
        yield (values.astype("<u4") << 16).view("<f4") if info.dtype == "BF16" else values


def check_finite(stats: Mapping[str, TensorStats]) -> list[Problem]:
    return [
        Problem(
            "non_finite_values",
            f"{name}: {found.num_nonfinite} values are NaN or infinite: did the training diverge?",
            name,
            "finite values",
            str(found.num_nonfinite),
        )
        for name, found in stats.items()
        if found.num_nonfinite
    ]


def check_effect(
    plan: AdapterPlan, stats: Mapping[str, TensorStats]
) -> tuple[list[Problem], list[Problem]]:
    """(problems, warnings): an adapter of zeros is refused, a module of zeros is mentioned."""
    idle = [name for name, module in plan.modules.items() if _is_zero(module, stats)]
    problems = [
        _overflow(name) for name, module in plan.modules.items() if _overflows(module, stats)
    ]
    if len(idle) == len(plan.modules):
        message = "every module's A or B is all zeros: the adapter changes nothing; was it trained?"
        problems.append(Problem("no_effect", message, "adapter_model.safetensors", "an effect"))
    elif idle:
        message = f"{len(idle)} of {len(plan.modules)} modules are all zeros and change nothing"
        return problems, [Problem("idle_modules", message, idle[0])]
    return problems, []


def _is_zero(module: ModulePlan, stats: Mapping[str, TensorStats]) -> bool:
    return stats[module.a_name].max_abs == 0 or stats[module.b_name].max_abs == 0


def _overflows(module: ModulePlan, stats: Mapping[str, TensorStats]) -> bool:
    a, b = stats[module.a_name].max_abs, stats[module.b_name].max_abs
    return abs(module.scale) * a * b * module.rank > MAX_DELTA


def _overflow(name: str) -> Problem:
    message = f"{name}: scale · B · A leaves the range of the serving dtype"
    return Problem("scale_overflow", message, name, f"below {MAX_DELTA:.3g}")
