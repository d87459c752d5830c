"""The same inputs give the same bits on a GPU: run to run, and in any company."""

import pytest

from kernels.bench.determinism import same_bits
from kernels.bench.workloads import Group
from tests.kernels.conftest import HAS_CUDA

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device"),
]

GROUPS = (Group(1024, (1024, 256, 256)), Group(1024, (1400, 1400)), Group(2816, (1000,)))


@pytest.mark.parametrize(("num_tokens", "num_adapters"), [(1, 1), (8, 4), (64, 16), (256, 64)])
def test_same_bits(num_tokens: int, num_adapters: int) -> None:
    assert same_bits(num_tokens, num_adapters, GROUPS) == {
        "repeat": True,
        "company": True,
        "folded": True,
        "order": True,
    }
