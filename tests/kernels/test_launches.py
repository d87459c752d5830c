"""Every launch of a Llama-3.1-8B layer compiles for an H200 and fits it, without a GPU."""

import json
import os
import subprocess
import sys

from tests.kernels.compiling import bare_arrivals

# Bytes of shared memory that a program may have on compute capability 9.0.
MAX_SHARED = 227 * 1024
KERNELS = {
    "argmax_parts_kernel",
    "argmax_rows_kernel",
    "decode_kernel",
    "expand_add_norm_kernel",
    "expand_rope_kv_write_kernel",
    "expand_silu_mul_kernel",
    "hopper_decode_kernel",
    "hopper_prefill_kernel",
    "linear_shares_kernel",
    "list_pages_kernel",
    "list_rows_kernel",
    "lora_expand_kernel",
    "lora_shrink_kernel",
    "norm_of_squares_kernel",
    "prefill_kernel",
    "rms_norm_kernel",
    "rope_kv_write_kernel",
    "silu_mul_kernel",
    "sort_tokens_kernel",
}


def test_every_launch_fits_a_hopper_gpu() -> None:
    environment = {name: v for name, v in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.launches"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    launches = [json.loads(line) for line in run.stdout.splitlines()]
    assert {one["kernel"] for one in launches} == KERNELS
    assert not [one for one in launches if one["shared"] > MAX_SHARED]
    assert not [one for one in launches if one["stack"]]
    assert not [one for one in launches if one["bare_arrivals"]]


def test_an_arrival_behind_a_read_is_bare() -> None:
    arrive = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];"
    assert bare_arrivals(f"ld.shared.b32 %r2, [%r3];\nbar.sync 2, 128;\n{arrive}") == 0
    assert bare_arrivals(f"bar.sync 2, 128;\nld.shared.b32 %r2, [%r3];\n{arrive}") == 1
