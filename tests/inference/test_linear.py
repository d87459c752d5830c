"""Packed weights on the CPU: what they give, and which copies of a weight they keep."""

import weakref

import pytest
import torch
import torch.nn.functional as F

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
