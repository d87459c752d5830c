"""Kernel tests need no web stack: on a machine with a GPU, torch and pytest are enough.

Without CUDA the Triton kernels run in the interpreter, chosen before triton is imported.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

HAS_CUDA = torch.cuda.is_available()
if not HAS_CUDA:
    os.environ["TRITON_INTERPRET"] = "1"


@dataclass(frozen=True)
class Target:
    """Where and in what a kernel runs. In the interpreter bf16 arithmetic is wrong: GPU only."""

    device: str
    dtype: torch.dtype


TARGETS = [
    pytest.param(Target("cpu", torch.float32), id="interpreter-fp32"),
    pytest.param(Target("cpu", torch.float16), id="interpreter-fp16"),
    pytest.param(Target("cuda", torch.float32), id="gpu-fp32", marks=pytest.mark.gpu),
    pytest.param(Target("cuda", torch.float16), id="gpu-fp16", marks=pytest.mark.gpu),
    pytest.param(Target("cuda", torch.bfloat16), id="gpu-bf16", marks=pytest.mark.gpu),
]


def pytest_configure(config: pytest.Config) -> None:
    # Known to the repository's settings too; the GPU check runs without them.
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    chosen: Target = request.param
    if chosen.device == "cuda" and not HAS_CUDA:
        pytest.skip("needs a CUDA device")
    if chosen.device == "cpu" and HAS_CUDA:
        pytest.skip("the interpreter is for machines without CUDA")
    return chosen


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops allocate by new_empty and empty_like: filled with NaN, an unwritten element shows."""
    monkeypatch.setattr(torch.Tensor, "new_empty", _poisoned(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", _poisoned(torch.empty_like))


def _poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def poisoned(*args: object, **options: object) -> torch.Tensor:
        tensor = allocate(*args, **options)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    return poisoned
