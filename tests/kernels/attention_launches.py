"""python -m tests.kernels.attention_launches: compiles attention for an H200, where there is none.

The host wrappers get CPU tensors; what they would launch is compiled to machine code instead, and
its resources are printed, one JSON line a launch. Without TRITON_INTERPRET, hence in a process of
its own.
"""

import json
import re
import subprocess
import sys
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
from triton.runtime.jit import JITFunction

from kernels.attention import hopper
from kernels.attention.decode import decode
from kernels.attention.prefill import prefill

TARGET = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32"}
OPTIONS = ("num_warps", "num_stages", "maxnreg")
NUM_SEQS, NUM_KV_HEADS, CONTEXT, BLOCK_SIZE, SCALE = 64, 8, 4096, 16, 0.1


def main() -> int:
    JITFunction.run = _compile
    for head_dim, group in ((128, 4), (64, 8)):
        _launch(hopper.decode, hopper.prefill, head_dim, group)
    _launch(decode, prefill, 128, 4)
    return 0


def _launch(
    run_decode: Callable[..., None],
    run_prefill: Callable[..., None],
    head_dim: int,
    group: int,
) -> None:
    """Of a step of decodes, and of one of chunks."""
    q = torch.empty(NUM_SEQS, NUM_KV_HEADS * group, head_dim, dtype=torch.bfloat16)
    cache = torch.empty(16, BLOCK_SIZE, NUM_KV_HEADS, head_dim, dtype=torch.bfloat16)
    tables = torch.zeros(NUM_SEQS, CONTEXT // BLOCK_SIZE, dtype=torch.int32)
    ints = torch.zeros(NUM_SEQS + 1, dtype=torch.int32)
    run_decode(q, cache, cache, tables, ints[1:], SCALE, CONTEXT, torch.empty_like(q))
    run_prefill(q, cache, cache, tables, ints, ints[1:], SCALE, [1] * NUM_SEQS, q.clone())


def _compile(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
    options = {key: named.pop(key) for key in OPTIONS if key in named}
    values = dict(zip(kernel.arg_names, args, strict=False)) | named
    signature, constants, aligned = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[(place,)] = "constexpr", value
        elif isinstance(value, TensorDescriptor):
            signature[parameter.name] = _descriptor(value)
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + TYPES[value.dtype]
            if not parameter.do_not_specialize_on_alignment:
                aligned[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
            if not parameter.do_not_specialize and isinstance(value, int) and value % 16 == 0:
                aligned[(place,)] = [["tt.divisibility", 16]]
    made_of = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    source = made_of(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=TARGET, options=options)
    usage = _usage(made.asm["cubin"])
    print(json.dumps({"kernel": kernel.__name__, "shared": made.metadata.shared, **usage}))


def _descriptor(value: TensorDescriptor) -> str:
    return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)},{value.layout!r}>"


def _usage(cubin: bytes) -> dict[str, int]:
    """Registers a thread, bytes of its stack (what did not fit in registers goes there)."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK):(\d+)", text))
    return {"registers": int(found["REG"]), "stack": int(found["STACK"])}


if __name__ == "__main__":
    sys.exit(main())
