"""Attention's kernels compile for an H200 and fit it, without a GPU: Gluon has no interpreter."""

import json
import os
import subprocess
import sys

# Bytes of shared memory that a program may have on compute capability 9.0.
MAX_SHARED = 227 * 1024
KERNELS = {"hopper_decode_kernel", "hopper_prefill_kernel", "decode_kernel", "prefill_kernel"}


def test_every_launch_fits_a_hopper_gpu() -> None:
    environment = {name: v for name, v in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.attention_launches"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    launches = [json.loads(line) for line in run.stdout.splitlines()]
    assert {one["kernel"] for one in launches} == KERNELS
    assert not [one for one in launches if one["shared"] > MAX_SHARED]
    assert not [one for one in launches if one["stack"]]
