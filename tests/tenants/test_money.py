from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.money import plain, to_nanos, to_pico


def test_it_works() -> None:
    assert to_pico(Decimal("0.0000074")) == 7_400_000
    assert to_nanos(Decimal("0.0000074")) == 7_400


def test_nanos_are_rounded_up() -> None:
    assert to_nanos(Decimal("0.000000000001")) == 1
    assert to_nanos(Decimal("0.000000001001")) == 2


def test_a_fraction_of_the_smallest_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="decimals"):
        to_pico(Decimal("0.0000000000001"))


@pytest.mark.parametrize(
    "amount, text",
    [("0", "0"), ("0E-12", "0"), ("2.000", "2"), ("1E+2", "100"), ("0.0000074000", "0.0000074")],
)
def test_plain(amount: str, text: str) -> None:
    assert plain(Decimal(amount)) == text


@given(st.integers(0, 2**62))
def test_plain_loses_nothing(pico: int) -> None:
    assert to_pico(Decimal(plain(Decimal(pico).scaleb(-12)))) == pico
