"""What more than one serializer here is made of."""

from decimal import Decimal
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from tenants.money import plain


@extend_schema_field({"type": "string", "format": "decimal", "example": "0.0000074"})
class AmountField(serializers.Field[Decimal, Any, str, Any]):
    """Money as an exact decimal string."""

    def to_representation(self, value: Decimal) -> str:
        return plain(value)


class TotalsSerializer(serializers.Serializer[Any]):
    num_requests = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="A part of prompt_tokens.")
    completion_tokens = serializers.IntegerField()
    cost = AmountField()
