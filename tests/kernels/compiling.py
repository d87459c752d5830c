"""Compiles a launch for an H200 instead of running it, on a machine without a GPU.

A launch's tensors may be fake ones (a device and a shape, no memory) or the CPU's.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import JITFunction, KernelParam

TARGET = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TYPES = {
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
}
OPTIONS = ("num_warps", "num_stages", "maxnreg", "launch_pdl")


def instead_of_running(tell: Callable[[dict[str, object]], None]) -> None:
    """From here on every launch of this process is compiled, and its resources are told."""

    def run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        options = {key: named.pop(key) for key in OPTIONS if key in named}
        values = dict(zip(kernel.arg_names, args, strict=False)) | named
        made = triton.compile(_source(kernel, values), target=TARGET, options=options)
        usage = _usage(made.asm["cubin"]) | {"bare_arrivals": bare_arrivals(made.asm["ptx"])}
        tell({"kernel": kernel.__name__, "shared": made.metadata.shared, **usage})

    JITFunction.run = run


def _source(kernel: JITFunction, values: dict[str, Any]) -> ASTSource:
    signature, constants, aligned = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name, value = parameter.name, values[parameter.name]
        signature[name] = _type(parameter, value)
        if signature[name] == "constexpr":
            constants[(place,)] = value
        elif _is_aligned(parameter, value):
            aligned[(place,)] = [["tt.divisibility", 16]]
    made_of = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    return made_of(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)


def _type(parameter: KernelParam, value: Any) -> str:
    """As Triton's launcher specializes: an absent pointer and a 1 are constants."""
    if parameter.is_constexpr or value is None:
        return "constexpr"
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)},{value.layout!r}>"
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "constexpr" if value == 1 and not parameter.do_not_specialize else "i32"


def _is_aligned(parameter: KernelParam, value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not parameter.do_not_specialize_on_alignment
    return isinstance(value, int) and value % 16 == 0 and not parameter.do_not_specialize


def _usage(cubin: bytes) -> dict[str, int]:
    """Registers a thread, bytes of its stack (what did not fit in registers goes there)."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK):(\d+)", text))
    return {"registers": int(found["REG"]), "stack": int(found["STACK"])}


def bare_arrivals(ptx: str) -> int:
    """Arrivals at a shared barrier that one thread makes for its warps before all have come.

    Between such an arrival and the barrier of the warps before it nothing may touch shared memory.
    """
    num_bare, is_open = 0, False
    for line in ptx.splitlines():
        if re.search(r"\bbar(rier)?(\.warp)?\.sync", line):
            is_open = False
        elif "mbarrier.arrive" in line:
            num_bare += is_open
        elif re.search(r"\b(ld|st)\.shared|\b(ld|st)matrix|wgmma\.mma_async", line):
            is_open = True
    return num_bare
