"""Packed weights on the CPU: what they give, and which copies of a weight they keep."""

import weakref

import pytest
import torch
import torch.nn.functional as F

from inference.cpu_threads import MAX_TOKENS_ALONE, threads, threads_of_step
from inference.models.linear import PackedLinear, PlainLinear, linear

SHAPES = ((37, 19), (19, 37), (64, 64), (1, 7), (7, 1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("keeps_one_row", [False, True])
def test_packed_equals_plain(shape: tuple[int, int], keeps_one_row: bool) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(shape), torch.randn(shape[0])
    with torch.inference_mode():
        for b in (None, bias):
            packed = linear(weight, b, keeps_one_row)
            assert isinstance(packed, PackedLinear)
            for num_rows in (1, 2, 8, 65):
                x = torch.randn(num_rows, shape[1])
                torch.testing.assert_close(packed(x), F.linear(x, weight, b))


def test_the_plain_weight_is_dropped_unless_it_serves_one_row() -> None:
    kept = {}
    for shape in ((37, 19), (19, 37)):
        for keeps_one_row in (False, True):
            weight = torch.randn(shape)
            storage = weakref.ref(weight.untyped_storage())
            packed = linear(weight, None, keeps_one_row)
            assert isinstance(packed, PackedLinear)
            address = weight.data_ptr()
            one_row = packed.one_row
            kept[shape, keeps_one_row] = one_row is not None and one_row.data_ptr() == address
            del weight
            assert storage() is None or kept[shape, keeps_one_row]
    wide = ((19, 37), True)
    assert kept == {key: key == wide for key in kept}


def test_what_cannot_be_packed_stays_plain() -> None:
    assert isinstance(linear(torch.randn(5, 3, dtype=torch.bfloat16)), PlainLinear)


def test_a_small_step_has_one_thread_and_its_matmuls_have_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    pointwise = torch.ops.mkldnn._linear_pointwise

    def counted(*arguments: object) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        found: torch.Tensor = pointwise(*arguments)
        return found

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    cpu = torch.device("cpu")
    with threads(2):
        packed = linear(torch.randn(37, 19))
        for num_tokens, alone in ((1, 1), (MAX_TOKENS_ALONE, 1), (MAX_TOKENS_ALONE + 1, 2)):
            with threads_of_step(num_tokens, cpu):
                assert torch.get_num_threads() == alone
                packed(torch.randn(num_tokens, 19))
                assert torch.get_num_threads() == alone
            assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError, match="mat"), threads_of_step(1, cpu):
            packed(torch.randn(1, 5))
        assert torch.get_num_threads() == 2
    assert seen and set(seen) == {2}
