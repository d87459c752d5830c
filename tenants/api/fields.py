"""What more than one serializer here is made of."""

from decimal import Decimal
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from tenants.limits import LIMIT_COLUMNS, MAX_TOKENS
from tenants.money import MAX_BUDGET, plain

# What a 32-bit column holds.
MAX_RATE = 2**31 - 1


@extend_schema_field({"type": "string", "format": "decimal", "example": "0.0000074"})
class AmountField(serializers.Field[Decimal, Any, str, Any]):
    """Money as an exact decimal string."""

    def to_representation(self, value: Decimal) -> str:
        return plain(value)


class LimitsSerializer(serializers.Serializer[Any]):
    """Limits as they stand; one that is null is none."""

    requests_per_minute = serializers.IntegerField(allow_null=True)
    tokens_per_minute = serializers.IntegerField(allow_null=True)
    max_concurrency = serializers.IntegerField(allow_null=True)
    tokens_per_day = serializers.IntegerField(allow_null=True, help_text="Days are UTC.")
    tokens_per_month = serializers.IntegerField(allow_null=True, help_text="Months are UTC.")
    daily_budget = AmountField(allow_null=True)
    monthly_budget = AmountField(allow_null=True)


def whole(most: int) -> serializers.IntegerField:
    return serializers.IntegerField(required=False, allow_null=True, min_value=1, max_value=most)


def money() -> serializers.DecimalField:
    return serializers.DecimalField(
        max_digits=12,
        decimal_places=2,
        required=False,
        allow_null=True,
        min_value=Decimal(0),
        max_value=MAX_BUDGET,
    )


class SetLimitsSerializer(serializers.Serializer[Any]):
    """Limits as they are given."""

    requests_per_minute = whole(MAX_RATE)
    tokens_per_minute = whole(MAX_RATE)
    max_concurrency = whole(MAX_RATE)
    tokens_per_day = whole(MAX_TOKENS)
    tokens_per_month = whole(MAX_TOKENS)
    daily_budget = money()
    monthly_budget = money()


def take_limits(form: dict[str, Any]) -> dict[str, Any]:
    """The limits of a validated form, taken out of it."""
    return {name: form.pop(name) for name in LIMIT_COLUMNS if name in form}


class TotalsSerializer(serializers.Serializer[Any]):
    num_requests = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="A part of prompt_tokens.")
    completion_tokens = serializers.IntegerField()
    cost = AmountField()
