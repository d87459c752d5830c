"""Our kernels and the peers' on one case: the calls that are timed, set by set.

The peers' come through kernels_peer.py, which loads their kernel files from a folder that is
carried to the machine and never committed: DIR/bench holds the script, DIR/k the files.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from kernels.bench.cases import MAX_PAIRS, Case, paged, reference
from kernels.bench.folded import Layer, consumer_of
from kernels.bench.timing import Call
from kernels.lora import ActivePages, LoraBatch, LoraWeights, add_lora, lora_linear
from kernels.lora.fp8 import quantize_rows

OURS, OURS_FP8 = "ours", "ours_fp8"
LOADER = "bench/kernels_peer.py"
PEERS = ("vllm0.33", "sgl_csgmv", "sgl_v2")
# Of bf16 results whose hidden part is rounded to bf16 too: 2.6e-3 was seen of every peer. A value
# in e4m3 is off by up to 1/16 of itself.
MAX_ERROR, MAX_FP8_ERROR = 2e-2, 6e-2


@dataclass(frozen=True)
class Work:
    """alone: LoRA added into y. pair: base matmul and LoRA. A call a set.

    plain, own, folded: base matmul and what reads y next; by cuBLAS, by our own matmul, and with
    LoRA folded in; of ours.
    """

    alone: list[Call]
    pair: list[Call]
    plain: list[Call] = field(default_factory=list)
    own: list[Call] = field(default_factory=list)
    folded: list[Call] = field(default_factory=list)


# Of a case and the base weights [sets, N, H].
Backend = Callable[[Case, torch.Tensor], Work]


def load(
    peers_dir: str | None, names: tuple[str, ...] = PEERS, *, in_fp8: bool = False
) -> dict[str, Backend]:
    """Ours, with its rows in fp8 too if asked, and the named peers if a folder is given.

    ValueError: a peer cannot be loaded.
    """
    backends: dict[str, Backend] = {OURS: ours}
    if in_fp8:
        backends[OURS_FP8] = ours_fp8
    if peers_dir is not None:
        backends |= _peers(Path(peers_dir), names)
    return backends


def ours(case: Case, base: torch.Tensor) -> Work:
    pool = paged(case)
    return _ours(case, base, list(pool.weights), pool.batch)


def ours_fp8(case: Case, base: torch.Tensor) -> Work:
    """The same adapters with their rows stored in fp8."""
    pool = paged(case)
    return _ours(case, base, [to_fp8(weights) for weights in pool.weights], pool.batch)


def _ours(case: Case, base: torch.Tensor, weights: list[LoraWeights], batch: LoraBatch) -> Work:
    batch = ActivePages(weights).bind(batch, {})
    sets = range(case.num_sets)
    alone: list[Call] = [partial(add_lora, case.y[i], case.x[i], weights[i], batch) for i in sets]
    pair: list[Call] = [
        partial(lora_linear, case.x[i], base[i % len(base)], weights[i], batch)
        for i in sets[:MAX_PAIRS]
    ]
    consumer = consumer_of(case.group, case.x.shape[1])
    layers = [
        Layer(base[i % len(base)], case.x[i], case.y[i], weights[i], batch, consumer)
        for i in sets[:MAX_PAIRS]
    ]
    forms = ([getattr(layer, form) for layer in layers] for form in ("plain", "own", "folded"))
    return Work(alone, pair, *forms)


def to_fp8(weights: LoraWeights) -> LoraWeights:
    a, scale_a = quantize_rows(weights.a)
    parts = torch.split_with_sizes(weights.b, weights.slice_sizes, dim=2)
    quantized = [quantize_rows(part) for part in parts]
    # torch concatenates no fp8: its bytes stand for it.
    b = torch.cat([part.view(torch.uint8) for part, _ in quantized], dim=2).view(a.dtype)
    scales = scale_a * torch.stack([scale for _, scale in quantized], dim=1)
    return LoraWeights(a, b, weights.slice_sizes, weights.column, row_scales=scales)


def base_calls(case: Case, base: torch.Tensor) -> list[Call]:
    def call(i: int) -> torch.Tensor:
        return torch.mm(case.x[i], base[i % len(base)].T, out=case.y[i])

    return [partial(call, i) for i in range(min(case.num_sets, MAX_PAIRS))]


def peer_work(peer: Any, caches: list[Any], case: Case, base: torch.Tensor) -> Work:
    """caches: emptied first. vLLM keeps strides by address, which another shape may get next."""
    for kept in caches:
        kept.clear()
    view = peer_view(case)
    mm, alone = base_calls(case, base), peer.calls(view, exact=True)
    overlap = getattr(peer, "pair_calls", None)
    pair = overlap(view, lambda i: mm[i % len(mm)]()) if overlap else None
    in_turn: list[Call] = [partial(_both, *calls) for calls in zip(mm, alone, strict=False)]
    return Work(alone, pair[:MAX_PAIRS] if pair else in_turn)


def errors(backend: Backend, case: Case, base: torch.Tensor) -> tuple[float, float]:
    """Size of the error over that of the result: LoRA alone, and base matmul with LoRA."""
    delta = reference(case)
    work = backend(case, base)
    case.y.zero_()
    work.alone[0]()
    alone = _error(case.y[0], delta)
    case.y.fill_(float("nan"))
    result = work.pair[0]()
    pair = result if isinstance(result, torch.Tensor) else case.y[0]
    return alone, _error(pair, case.x[0].float() @ base[0].float().T + delta)


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


def peer_view(case: Case) -> SimpleNamespace:
    """The case under the names that kernels_peer.py reads."""
    num_slots, device = case.a.shape[1], case.a.device
    widths = case.group.slice_sizes
    return SimpleNamespace(
        c=_peer_sizes(case),
        k=case.group.hidden,
        ns=widths,
        n_out=sum(widths),
        s=len(widths),
        sets=case.num_sets,
        a=case.a,
        b=case.b,
        x=case.x,
        y=case.y,
        tok=case.token_slot,
        tok_gpu=case.token_slot.to(device),
        ranks=torch.full((num_slots,), case.rank, dtype=torch.int32, device=device),
        scal=torch.ones(num_slots, device=device),
        offsets=[sum(widths[:s]) for s in range(len(widths) + 1)],
    )


def _peer_sizes(case: Case) -> dict[str, object]:
    num_slots = case.a.shape[1]
    return {
        "rank": case.rank,
        "slots": num_slots,
        "n": num_slots,
        "m": case.x.shape[1],
        "phase": "decode" if case.is_decode else "prefill",
    }


def _peers(directory: Path, names: tuple[str, ...]) -> Iterator[tuple[str, Backend]]:
    loader, files = directory / LOADER, directory / "k"
    sys.path.insert(0, str(loader.parent))
    module = importlib.import_module(loader.stem)
    # Those of SGLang load together; each vLLM takes the place of the one before in sys.modules.
    loaded = module.backends(str(files), [name for name in names if name.startswith("sgl")])
    for name in names:
        peer = loaded.get(name) or module.backends(str(files), [name]).get(name)
        if peer is None:
            raise ValueError(f"peers: {name} is not among those that {loader} can load")
        yield name, partial(peer_work, peer, _pointer_caches() if name.startswith("vllm") else [])


def _pointer_caches() -> list[Any]:
    module = sys.modules["vllm.lora.ops.triton_ops.utils"]
    return [module._LORA_A_PTR_DICT, module._LORA_B_PTR_DICT]


def _both(matmul: Call, lora: Call) -> None:
    matmul()
    lora()
