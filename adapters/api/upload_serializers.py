"""Uploads in parts over the wire: OpenAI's shapes, and what of ours stands beside them."""

from typing import Any

from rest_framework import serializers

from adapters.models import Upload, UploadPart, UploadStatus, VersionState


class NewUploadSerializer(serializers.Serializer[Any]):
    filename = serializers.CharField(max_length=255, help_text="Shown; the bytes say what it is.")
    bytes = serializers.IntegerField(min_value=1, help_text="Of the whole file.")
    mime_type = serializers.CharField(max_length=255, required=False, help_text="Not looked at.")
    purpose = serializers.CharField(max_length=64, required=False, default="fine-tune")
    adapter = serializers.CharField(
        max_length=200,
        required=False,
        default="",
        allow_blank=True,
        help_text="Whose version it becomes; default: the file's name without .zip, .tar, .tar.gz.",
    )


class PartQuerySerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField(
        required=False,
        min_value=1,
        help_text="Its place. The same number again takes the part's place; without one, the next.",
    )
    sha256 = serializers.RegexField(
        r"^[0-9A-Fa-f]{64}\Z", required=False, help_text="In hex. Another one is a 400."
    )


class PartDataSerializer(serializers.Serializer[Any]):
    # The stubs know `data` as what a serializer renders.
    data = serializers.FileField()  # type: ignore[assignment]


class CompleteSerializer(serializers.Serializer[Any]):
    part_ids = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        max_length=10_000,
        help_text="In this order; default: all parts by number.",
    )
    md5 = serializers.CharField(max_length=64, required=False, help_text="Of the whole file.")


class PartSerializer(serializers.Serializer[UploadPart]):
    id = serializers.CharField()
    object = serializers.ChoiceField(choices=["upload.part"])
    created_at = serializers.IntegerField(help_text="Seconds since 1970.")
    upload_id = serializers.CharField()
    number = serializers.IntegerField()
    bytes = serializers.IntegerField()
    sha256 = serializers.CharField()


class UploadedVersionSerializer(serializers.Serializer[Any]):
    adapter = serializers.CharField()
    number = serializers.IntegerField()
    state = serializers.ChoiceField(choices=VersionState.choices)
    digest = serializers.CharField(allow_null=True)
    problems = serializers.ListField(child=serializers.CharField())


class UploadedFileSerializer(serializers.Serializer[Any]):
    id = serializers.CharField(help_text="The version, as `model` names it.")
    object = serializers.ChoiceField(choices=["file"])
    bytes = serializers.IntegerField()
    created_at = serializers.IntegerField()
    filename = serializers.CharField()
    purpose = serializers.CharField()
    status = serializers.ChoiceField(choices=["uploaded", "processed", "error"])


class UploadStateSerializer(serializers.Serializer[Upload]):
    id = serializers.CharField()
    object = serializers.ChoiceField(choices=["upload"])
    bytes = serializers.IntegerField()
    created_at = serializers.IntegerField(help_text="Seconds since 1970.")
    expires_at = serializers.IntegerField(help_text="Moves on with each part.")
    filename = serializers.CharField()
    purpose = serializers.CharField()
    status = serializers.ChoiceField(choices=UploadStatus.choices)
    adapter = serializers.CharField()
    max_part_bytes = serializers.IntegerField()
    parts = PartSerializer(many=True, help_text="What has arrived, by number.")
    version = UploadedVersionSerializer(allow_null=True)
    file = UploadedFileSerializer(allow_null=True)


def part_json(part: UploadPart, upload: Upload) -> dict[str, Any]:
    return {
        "id": part.public_id,
        "object": "upload.part",
        "created_at": int(part.created_at.timestamp()),
        "upload_id": upload.public_id,
        "number": part.number,
        "bytes": part.num_bytes,
        "sha256": part.sha256,
    }


def upload_json(upload: Upload, max_part_bytes: int) -> dict[str, Any]:
    """Call inside the tenant's scope."""
    return {
        "id": upload.public_id,
        "object": "upload",
        "bytes": upload.num_bytes,
        "created_at": int(upload.created_at.timestamp()),
        "expires_at": int(upload.expires_at.timestamp()),
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": upload.status,
        "adapter": upload.adapter_name,
        "max_part_bytes": max_part_bytes,
        "parts": [part_json(part, upload) for part in upload.parts.all()],
        "version": _version_json(upload),
        "file": _file_json(upload),
    }


def _version_json(upload: Upload) -> dict[str, Any] | None:
    version = upload.version
    if version is None:
        return None
    return {
        "adapter": upload.adapter_name,
        "number": version.number,
        "state": version.state,
        "digest": version.digest or None,
        "problems": [problem["message"] for problem in version.report["problems"]],
    }


_FILE_STATUS = {
    VersionState.UPLOADED: "uploaded",
    VersionState.VALIDATING: "uploaded",
    VersionState.REJECTED: "error",
    VersionState.FAILED: "error",
}


def _file_json(upload: Upload) -> dict[str, Any] | None:
    version = upload.version
    if version is None:
        return None
    return {
        "id": f"{upload.adapter_name}@{version.number}",
        "object": "file",
        "bytes": upload.num_bytes,
        "created_at": int(version.created_at.timestamp()),
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": _FILE_STATUS.get(VersionState(version.state), "processed"),
    }
