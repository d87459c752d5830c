"""Money without floats: Decimal in Python, whole pico-units (1e-12 of the unit) in the database.

Prices have at most six decimals for a million tokens, so the cost of any number of tokens is a
whole number of pico-units. SQLite keeps a DecimalField as a binary float and sums it as one;
integers are exact on both databases, and so are their sums.
"""

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

PICO_DIGITS = 12
# Lua counts in doubles: whole numbers are exact up to 2**53 nano-units.
MAX_BUDGET = Decimal(9_000_000)


def to_pico(amount: Decimal) -> int:
    """Raises ValueError for an amount that is no whole number of pico-units."""
    scaled = amount.scaleb(PICO_DIGITS)
    if scaled != scaled.to_integral_value():
        raise ValueError(f"{amount} has more than {PICO_DIGITS} decimals")
    return int(scaled)


def to_nanos(amount: Decimal) -> int:
    """Whole nano-units, rounded up: a counter never runs below the ledger."""
    return -(-to_pico(amount) // 1000)


def from_nanos(nanos: int) -> Decimal:
    return Decimal(nanos).scaleb(3 - PICO_DIGITS)


def plain(amount: Decimal) -> str:
    """Plain notation without trailing zeros: "0.0000074", "2", "0"."""
    text = format(amount, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


if TYPE_CHECKING:
    DecimalLike = models.Field[Decimal | int | str, Decimal]
else:
    # Django's fields take type arguments in the stubs only.
    DecimalLike = models.Field


class MoneyField(DecimalLike):
    """A Decimal amount, stored as a bigint of pico-units (at most 9.2 million units a row)."""

    def get_internal_type(self) -> str:
        return "BigIntegerField"

    def get_prep_value(self, value: Any) -> int | None:
        value = self.to_python(super().get_prep_value(value))
        return None if value is None else to_pico(value)

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        # PostgreSQL's SUM of bigints comes back as numeric.
        return None if value is None else Decimal(int(value)).scaleb(-PICO_DIGITS)

    def to_python(self, value: Any) -> Decimal | None:
        if value is None or isinstance(value, Decimal):
            return value
        try:
            return Decimal(str(value))
        except ArithmeticError as error:
            raise ValidationError(f"{value!r} is not an amount of money") from error
