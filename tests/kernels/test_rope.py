from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from kernels.rope import rope_kv_write
from tests.kernels.conftest import HAS_CUDA, Target
from tests.kernels.tolerances import assert_close

BLOCK_SIZE, EPS = 4, 1e-5


@dataclass(frozen=True)
class Case:
    num_tokens: int = 6
    num_heads: int = 3
    num_kv_heads: int = 1
    head_dim: int = 16
    rotary: int = 16
    has_norms: bool = False

    @property
    def num_places(self) -> int:
        """Five blocks, or as many as the tokens need."""
        return max(5, -(-self.num_tokens // BLOCK_SIZE)) * BLOCK_SIZE


CASES = {
    "plain": Case(),
    "one-token": Case(num_tokens=1, num_heads=4, num_kv_heads=2),
    "odd-heads": Case(num_heads=10, num_kv_heads=5, head_dim=24, rotary=24),
    "many-tokens": Case(num_tokens=40, num_heads=4, num_kv_heads=2),
    "partial": Case(rotary=6),
    "norms": Case(num_heads=4, num_kv_heads=2, has_norms=True),
    "norms-partial": Case(head_dim=20, rotary=8, has_norms=True),
}


@dataclass(frozen=True)
class Step:
    """What one call reads, and the caches it writes into: full of sevens."""

    qkv: torch.Tensor
    angle: torch.Tensor
    caches: tuple[torch.Tensor, torch.Tensor]
    places: torch.Tensor
    norms: tuple[torch.Tensor, torch.Tensor] | None

    def call(self, launch: Callable[..., torch.Tensor]) -> torch.Tensor:
        angles = (self.angle.cos().float(), self.angle.sin().float())
        norms = self.norms or (None, None)
        return launch(
            self.qkv,
            *angles,
            *self.caches,
            self.places,
            q_norm=norms[0],
            k_norm=norms[1],
            eps=EPS,
        )


def make_step(case: Case, target: Target) -> Step:
    """qkv is a view of a wider tensor; some tokens are padding, one place lies past the cache."""
    generator = torch.Generator().manual_seed(case.num_tokens)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(target.device, target.dtype)

    width = (case.num_heads + 2 * case.num_kv_heads) * case.head_dim
    frequency = 100.0 ** -(torch.arange(case.rotary // 2).double() / (case.rotary // 2))
    angle = torch.arange(case.num_tokens).double()[:, None] * 3 * frequency
    places = torch.randperm(case.num_places, generator=generator)[: case.num_tokens]
    if case.num_tokens > 3:
        places[1], places[3] = -1, case.num_places
    shape = (case.num_places // BLOCK_SIZE, BLOCK_SIZE, case.num_kv_heads, case.head_dim)
    caches = [torch.full(shape, 7.0).to(target.device, target.dtype) for _ in range(2)]
    norms = (drawn(case.head_dim), drawn(case.head_dim)) if case.has_norms else None
    return Step(
        drawn(case.num_tokens, width + 5)[:, 3 : width + 3],
        angle.to(target.device),
        (caches[0], caches[1]),
        places.to(target.device),
        norms,
    )


def turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Each pair as a complex number times e^(i·angle)."""
    half = angle.shape[1]
    low, high, rest = x.double().tensor_split([half, 2 * half], dim=-1)
    pairs = torch.complex(low, high) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat((pairs.real, pairs.imag, rest), dim=-1)


def normed(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    x = x.double()
    if weight is None:
        return x
    return x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + EPS).sqrt() * weight.double()


def check(
    case: Case, target: Target, launch: Callable[..., torch.Tensor], num_shares: int = 0
) -> None:
    step = make_step(case, target)
    if num_shares:
        step = replace(step, qkv=torch.randn(num_shares, *step.qkv.shape, device=target.device))
    before = step.qkv.clone()
    got = step.call(launch)
    assert got.dtype == target.dtype
    whole = step.qkv.double().sum(0) if num_shares else step.qkv
    heads = whole.reshape(case.num_tokens, -1, case.head_dim)
    q, k, v = heads.tensor_split([case.num_heads, case.num_heads + case.num_kv_heads], dim=1)
    q_norm, k_norm = step.norms or (None, None)
    assert_close(got, turned(normed(q, q_norm), step.angle).cpu())
    written = [t for t, place in enumerate(step.places.tolist()) if 0 <= place < case.num_places]
    k_want, v_want = (torch.full_like(cache, 7.0).double() for cache in step.caches)
    places = step.places[written]
    k_want.view(case.num_places, *k.shape[1:])[places] = turned(normed(k, k_norm), step.angle)[
        written
    ]
    v_want.view(case.num_places, *v.shape[1:])[places] = v[written].double()
    assert_close(step.caches[0], k_want.cpu())
    assert_close(step.caches[1], v_want.cpu())
    assert num_shares or torch.equal(step.caches[1].double(), v_want)
    assert torch.equal(step.qkv, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_rope_kv_write_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], Target("cpu", dtype), rope_kv_write)


@pytest.mark.parametrize("name", CASES)
def test_triton_rope_kv_write(name: str, target: Target) -> None:
    check(CASES[name], target, triton_op())


@pytest.mark.parametrize("name", ["plain", "norms-partial"])
def test_triton_rope_kv_write_of_shares(name: str, target: Target) -> None:
    check(CASES[name], target, triton_op(), num_shares=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rope_kv_write_of_shares(dtype: torch.dtype) -> None:
    check(CASES["norms"], Target("cpu", dtype), rope_kv_write, num_shares=2)


def triton_op() -> Callable[..., torch.Tensor]:
    """The public call launches on CUDA; the interpreter is reached beneath it."""
    if HAS_CUDA:
        return rope_kv_write
    from kernels.rope import kernel

    launch: Callable[..., torch.Tensor] = kernel.rope_kv_write
    return launch


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("num_tokens", [1, 64, 300])
@pytest.mark.parametrize("has_norms", [False, True])
def test_rope_of_a_large_model(num_tokens: int, has_norms: bool) -> None:
    case = Case(num_tokens, 32, 8, 128, 128, has_norms)
    check(case, Target("cuda", torch.bfloat16), rope_kv_write)


def test_an_infinite_value_is_kept() -> None:
    """Values are copied, not turned by nothing: 0 · inf would be NaN."""
    step = make_step(Case(), Target("cuda" if HAS_CUDA else "cpu", torch.float32))
    step.qkv[0, -1] = float("inf")
    step.call(triton_op())
    assert step.caches[1].view(20, -1)[step.places[0], -1] == float("inf")


def changed(**changes: object) -> Callable[[], torch.Tensor]:
    step = make_step(Case(), Target("cpu", torch.float32))
    angles = step.angle.float()
    arguments: dict[str, object] = {
        "qkv": step.qkv,
        "cos": angles,
        "sin": angles,
        "k_cache": step.caches[0],
        "v_cache": step.caches[1],
        "places": step.places,
    }
    call: Callable[..., torch.Tensor] = rope_kv_write
    return lambda: call(**(arguments | changes))


BAD: dict[str, dict[str, object]] = {
    "qkv: expected dtype torch.float32 or": {"qkv": torch.zeros(6, 80).double()},
    "qkv: expected rows of adjacent elements": {"qkv": torch.zeros(80, 6).T},
    "qkv's width: expected (HQ + 2·1)·16, HQ > 0, got 32": {"qkv": torch.zeros(6, 32)},
    "qkv's width: expected (HQ + 2·1)·16, HQ > 0, got 81": {"qkv": torch.zeros(6, 81)},
    "cos: expected shape [6, Dr/2], got [5, 8]": {"cos": torch.zeros(5, 8)},
    "sin: expected shape [6, 8], got [6, 7]": {"sin": torch.zeros(6, 7)},
    "cos: expected dtype torch.float32": {"cos": torch.zeros(6, 8).double()},
    "rotary size: expected 2 to 16, got 18": {"cos": torch.zeros(6, 9), "sin": torch.zeros(6, 9)},
    "qkv: expected dtype torch.float32, got torch.float16": {"qkv": torch.zeros(6, 48).half()},
    "v_cache: expected shape [5, 4, 1, 16]": {"v_cache": torch.zeros(5, 4, 2, 16)},
    "v_cache: expected dtype torch.float32": {"v_cache": torch.zeros(5, 4, 1, 16).half()},
    "v_cache: expected a contiguous": {"v_cache": torch.zeros(5, 4, 1, 32)[..., ::2]},
    "places: expected shape [6], got [5]": {"places": torch.zeros(5).long()},
    "places: expected dtype torch.int64": {"places": torch.zeros(6).int()},
    "places: expected device cpu, got meta": {"places": torch.zeros(6, device="meta").long()},
    "places: expected a contiguous tensor": {"places": torch.zeros(12).long()[::2]},
    "eps: expected at least 0, got -1e-05": {"eps": -1e-5},
    "norms: expected both of q and k, or none": {"q_norm": torch.zeros(16)},
    "k_norm: expected shape [16], got [8]": {"q_norm": torch.zeros(16), "k_norm": torch.zeros(8)},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments_say_expected_and_got(message: str) -> None:
    with pytest.raises(ValueError) as caught:
        changed(**BAD[message])()
    assert message in str(caught.value)
