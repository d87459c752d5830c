"""Counters of the attention kernels: whose they are, and how long they live."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch

from kernels.attention import tickets as module
from kernels.attention.tickets import MIN_KEPT, tickets
from tests.kernels.conftest import HAS_CUDA

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "KEPT", {})
    yield


def test_launches_of_one_stream_share_theirs() -> None:
    first = tickets(CPU, 3)
    assert first.dtype == torch.int32 and not first.any()
    assert tickets(CPU, MIN_KEPT) is first


def test_a_larger_one_leaves_the_former_to_its_graphs() -> None:
    """A graph captured with the first counts in its memory whenever it is replayed."""
    first = weakref.ref(tickets(CPU, 3))
    larger = tickets(CPU, MIN_KEPT + 1)
    assert len(larger) == 2 * MIN_KEPT
    gc.collect()
    assert first() is not None
    assert tickets(CPU, 3) is larger


def test_streams_share_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[int, torch.Tensor] = {}
    for stream in (7, 8, 7):
        monkeypatch.setattr(module, "_stream", lambda device, stream=stream: stream)
        made = tickets(CPU, 3)
        assert found.setdefault(stream, made) is made
    assert found[7] is not found[8]


def test_graphs_share_theirs_with_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made by the launch that warms the capture up, whatever stream it was on."""
    eager = tickets(CPU, 3)
    monkeypatch.setattr(module, "_is_capturing", lambda device: True)
    captured = tickets(CPU, MIN_KEPT)
    assert captured is not eager and not captured.any()
    assert tickets(CPU, 3) is captured


def test_a_fill_that_is_only_recorded_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_is_capturing", lambda device: True)
    recorded = tickets(CPU, 3)
    assert tickets(CPU, 3) is not recorded
    assert not module.KEPT


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
def test_streams_of_a_device_share_none() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    first = tickets(device, 3)
    other = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(other):
        assert tickets(device, 3) is not first
    assert tickets(device, 3) is first
