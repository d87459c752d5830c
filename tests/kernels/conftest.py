"""Kernel tests need no web stack: on a machine with a GPU, torch and pytest are enough.

Without CUDA the Triton kernels run in the interpreter, chosen before triton is imported.
"""

import os
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
    new_empty, empty_like = torch.Tensor.new_empty, torch.empty_like

    def poisoned_new_empty(self: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        return _poison(new_empty(self, *args, **options))

    def poisoned_empty_like(*args: object, **options: object) -> torch.Tensor:
        return _poison(empty_like(*args, **options))

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned_new_empty)
    monkeypatch.setattr(torch, "empty_like", poisoned_empty_like)


def _poison(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor
