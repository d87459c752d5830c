"""What goes over the wire, exactly as the OpenAPI schema says it."""

from typing import Any

from django.db.models import Count, QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from adapters.access import served_ids
from adapters.models import (
    Adapter,
    AdapterVersion,
    Canary,
    CanaryState,
    FleetEvent,
    Keep,
    Placement,
    PlacementState,
    Replica,
    VersionState,
)


class VersionRefSerializer(serializers.Serializer[AdapterVersion]):
    number = serializers.IntegerField()
    digest = serializers.CharField()


class CanaryRefSerializer(serializers.Serializer[Canary]):
    version = serializers.IntegerField(source="version.number")
    percent = serializers.IntegerField(help_text="Of the end users; 1 to 99.")
    state = serializers.ChoiceField(choices=CanaryState.choices)


class AdapterSerializer(serializers.ModelSerializer[Adapter]):
    active_version = VersionRefSerializer(allow_null=True, read_only=True)
    canary = CanaryRefSerializer(allow_null=True, read_only=True)
    num_versions = serializers.IntegerField(read_only=True)
    keep = serializers.ChoiceField(
        choices=Keep.choices, read_only=True, help_text="Near the device; the operator's to set."
    )
    retired_at = serializers.DateTimeField(
        allow_null=True, read_only=True, help_text="Until a version is activated again."
    )

    class Meta:
        model = Adapter
        fields = [
            "name",
            "description",
            "active_version",
            "canary",
            "num_versions",
            "keep",
            "retired_at",
            "created_at",
            "updated_at",
        ]


class NewAdapterSerializer(serializers.Serializer[Any]):
    # The name's rule is publish.create_adapter's, which says what was wrong with it.
    name = serializers.CharField(max_length=200)
    description = serializers.CharField(
        max_length=500, required=False, default="", allow_blank=True
    )


class ProblemSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()
    where = serializers.CharField(allow_blank=True)
    expected = serializers.CharField(allow_blank=True)
    found = serializers.CharField(allow_blank=True)


class SourceSerializer(serializers.Serializer[Any]):
    repo_id = serializers.CharField()
    revision = serializers.CharField()
    commit = serializers.CharField()


class FactsSerializer(serializers.Serializer[Any]):
    """Of an adapter whose tensors fit; absent before that is known."""

    rank = serializers.IntegerField(required=False)
    ranks = serializers.DictField(child=serializers.IntegerField(), required=False)
    num_modules = serializers.IntegerField(required=False)
    num_base_modules = serializers.IntegerField(required=False)
    num_tensors = serializers.IntegerField(required=False)
    num_parameters = serializers.IntegerField(required=False)
    targets = serializers.ListField(child=serializers.CharField(), required=False)
    dtypes = serializers.ListField(child=serializers.CharField(), required=False)
    scales = serializers.ListField(child=serializers.FloatField(), required=False)
    chat_template = serializers.DictField(
        child=serializers.CharField(),
        required=False,
        help_text="The file that it came in, and its sha256.",
    )
    # The stubs know `source` as where a field reads from.
    source = SourceSerializer(  # type: ignore[assignment]
        required=False, help_text="The Hugging Face repository it was imported from."
    )


class ReportSerializer(serializers.Serializer[Any]):
    problems = ProblemSerializer(many=True)
    warnings = ProblemSerializer(many=True)
    facts = FactsSerializer()


class VersionSerializer(serializers.ModelSerializer[AdapterVersion]):
    state = serializers.ChoiceField(choices=VersionState.choices, read_only=True)
    digest = serializers.SerializerMethodField()
    report = ReportSerializer(read_only=True)
    is_served = serializers.SerializerMethodField(
        help_text="Whether requests that name it are answered now."
    )
    error = serializers.SerializerMethodField()

    class Meta:
        model = AdapterVersion
        fields = [
            "number",
            "digest",
            "state",
            "report",
            "rank",
            "size_bytes",
            "created_by",
            "created_at",
            "activated_at",
            "is_served",
            "error",
        ]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # By adapter: one serializer renders all rows of a page, for one query.
        self._served: dict[int, set[int]] = {}

    def get_is_served(self, version: AdapterVersion) -> bool:
        if version.state == VersionState.ACTIVE:
            return True
        if version.adapter_id not in self._served:
            self._served[version.adapter_id] = served_ids(version.adapter_id)
        return version.id in self._served[version.adapter_id]

    def get_digest(self, version: AdapterVersion) -> str | None:
        return version.digest or None

    def get_error(self, version: AdapterVersion) -> str | None:
        return version.error or None


class UploadSerializer(serializers.Serializer[Any]):
    """Both files, a folder's files, or one archive that holds them."""

    config = serializers.FileField(required=False, help_text="adapter_config.json")
    weights = serializers.FileField(required=False, help_text="adapter_model.safetensors")
    archive = serializers.FileField(required=False, help_text="A zip, tar or tar.gz.")
    files = serializers.ListField(
        child=serializers.FileField(),
        required=False,
        help_text="A folder as PEFT saves it; what is no part of an adapter is left out.",
    )


class PlacementSerializer(serializers.ModelSerializer[Placement]):
    state = serializers.ChoiceField(choices=PlacementState.choices, read_only=True)

    class Meta:
        model = Placement
        fields = ["digest", "state", "attempts", "error", "updated_at"]


class ReplicaSerializer(serializers.ModelSerializer[Replica]):
    placements = PlacementSerializer(many=True, read_only=True)
    state = serializers.SerializerMethodField()

    class Meta:
        model = Replica
        fields = [
            "id",
            "url",
            "dialect",
            "healthy",
            "draining_since",
            "drained_by",
            "last_seen",
            "error",
            "state",
            "placements",
        ]

    @extend_schema_field(serializers.DictField())
    def get_state(self, replica: Replica) -> dict[str, Any]:
        return dict(replica.state)


class FleetEventSerializer(serializers.ModelSerializer[FleetEvent]):
    class Meta:
        model = FleetEvent
        fields = ["at", "actor", "action", "target"]
        read_only_fields = fields


def with_counts(rows: QuerySet[Adapter]) -> QuerySet[Adapter]:
    """What AdapterSerializer reads, in one query."""
    return rows.select_related("active_version", "canary__version").annotate(
        num_versions=Count("versions")
    )
