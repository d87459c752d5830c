"""Uploads in parts through /api: order, resuming, checksums, limits, expiry, the wall."""

import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from adapters import storage, uploads
from adapters.models import AdapterVersion, Upload
from adapters.validate import validate_version
from adapters.validation.join import join_parts
from tenants.auth import Principal
from tenants.models import AuditEvent, Plan
from tenants.scope import tenant_scope
from tests.adapters.conftest import client_of
from tests.adapters.test_api import error_of, quarantines, zipped

ROOT = "/api/tenants/acme/uploads/"
PART_BYTES = 4096


@pytest.fixture
def packed(adapter_files: Path) -> bytes:
    """A zip of a sound adapter, a few parts long."""
    return zipped(adapter_files).read()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def begin(client: Client, num_bytes: int, **more: Any) -> Any:
    body = {"filename": "support-bot.zip", "bytes": num_bytes, "purpose": "fine-tune", **more}
    return client.post(ROOT, body, content_type="application/json")


def put(client: Client, upload: str, data: bytes, **query: Any) -> Any:
    query = {"sha256": sha256(data), **query}
    given = "&".join(f"{name}={value}" for name, value in query.items() if value is not None)
    body = {"data": SimpleUploadedFile("../../evil", data)}
    return client.post(f"{ROOT}{upload}/parts/?{given}", body)


def finish(client: Client, upload: str, **body: Any) -> Any:
    return client.post(f"{ROOT}{upload}/complete/", body, content_type="application/json")


def slices(data: bytes) -> list[bytes]:
    return [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]


def validated(upload: str) -> AdapterVersion:
    """Its version, after the real checks. Call inside the tenant's scope."""
    version = Upload.objects.get(public_id=upload).version
    assert version is not None
    validate_version(version.tenant_id, version.id)
    version.refresh_from_db()
    return version


def test_it_works(client: Client, scope: Principal, packed: bytes) -> None:
    """Parts in any order, one lost on the way: GET says which, and a ready version at the end."""
    upload = begin(client, len(packed)).json()["id"]
    parts = slices(packed)
    assert len(parts) > 3
    for number, data in reversed(list(enumerate(parts, 1))):
        if number != 2:
            assert put(client, upload, data, number=number).status_code == 200
    arrived = client.get(f"{ROOT}{upload}/").json()
    assert arrived["status"] == "pending" and arrived["version"] is None
    expected = {n: sha256(data) for n, data in enumerate(parts, 1) if n != 2}
    assert {part["number"]: part["sha256"] for part in arrived["parts"]} == expected
    assert [one["id"] for one in client.get(ROOT).json()["results"]] == [upload]
    refused = finish(client, upload)
    assert error_of(refused) == (400, "incomplete_upload")
    assert "missing before the last: 2" in refused.json()["error"]["message"]
    put(client, upload, parts[1], number=2)
    done = finish(client, upload, md5=hashlib.md5(packed).hexdigest())
    assert done.json()["status"] == "completed" and done.json()["file"]["id"] == "support-bot@1"
    # A lost answer: the same again is the same version.
    assert finish(client, upload).json()["version"]["number"] == 1
    assert error_of(put(client, upload, parts[0], number=1)) == (409, "upload_not_pending")
    version = validated(upload)
    assert version.state == "ready" and version.report["facts"]["num_modules"] == 4
    assert client.get(f"{ROOT}{upload}/").json()["file"]["status"] == "processed"
    assert not quarantines() and client.get(ROOT).json()["count"] == 0
    acts = list(AuditEvent.objects.order_by("id").values_list("action", flat=True))
    assert acts[:2] == ["upload.opened", "adapter.created"]
    assert acts[2:4] == ["version.uploaded", "upload.completed"]


def test_a_wrong_checksum_names_both_and_keeps_nothing(client: Client, packed: bytes) -> None:
    upload = begin(client, len(packed)).json()["id"]
    refused = put(client, upload, packed, number=1, sha256="0" * 64)
    assert error_of(refused) == (400, "checksum_mismatch")
    message = refused.json()["error"]["message"]
    assert "0" * 64 in message and sha256(packed) in message
    assert client.get(f"{ROOT}{upload}/").json()["parts"] == []
    assert len(quarantines()) == 1 and not list(quarantines()[0].iterdir())
    put(client, upload, packed, number=1)
    wrong = finish(client, upload, md5="0" * 32)
    assert error_of(wrong) == (400, "checksum_mismatch")
    assert hashlib.md5(packed).hexdigest() in wrong.json()["error"]["message"]


def test_a_part_sent_again_is_the_same_part(client: Client, packed: bytes) -> None:
    upload = begin(client, len(packed)).json()["id"]
    first, second = packed[:100], packed[100:]
    ids = [put(client, upload, first, number=1).json()["id"] for _ in range(2)]
    assert ids[0] == ids[1]
    # Without a number as OpenAI's client sends: the next place, or the part with the same bytes.
    unnumbered = [put(client, upload, second).json() for _ in range(2)]
    assert unnumbered[0] == unnumbered[1] and unnumbered[0]["number"] == 2
    other = put(client, upload, bytes(100), number=1).json()
    assert other["id"] != ids[0] and other["sha256"] == sha256(bytes(100))
    assert error_of(finish(client, upload, part_ids=ids[:1])) == (400, "unknown_part")
    put(client, upload, first, number=1)
    parts = client.get(f"{ROOT}{upload}/").json()["parts"]
    assert [part["number"] for part in parts] == [1, 2]
    in_wrong_order = [part["id"] for part in reversed(parts)]
    assert finish(client, upload, part_ids=in_wrong_order).status_code == 200


def test_limits_of_the_plan(client: Client, alice: Principal) -> None:
    Plan.objects.update(max_upload_bytes=1000, max_upload_parts=2, max_open_uploads=3)
    assert error_of(begin(client, 1001)) == (413, "upload_too_large")
    assert error_of(begin(client, 0)) == (400, "invalid_request")
    assert error_of(begin(client, 10, purpose="vision")) == (400, "invalid_purpose")
    assert error_of(begin(client, 10, filename="Bad Name.zip")) == (400, "invalid_name")
    upload = begin(client, 1000).json()["id"]
    assert error_of(put(client, upload, b"x", number=3)) == (400, "invalid_part_number")
    assert error_of(put(client, upload, b"x", number=0)) == (400, "invalid_request")
    assert error_of(put(client, upload, b"x", sha256="zz")) == (400, "invalid_request")
    assert put(client, upload, bytes(999), number=1).status_code == 200
    assert error_of(put(client, upload, b"xy", number=2)) == (400, "invalid_part_size")
    assert error_of(put(client, upload, b"", number=2)) == (400, "invalid_part_size")
    Plan.objects.update(max_stored_bytes=1500)
    assert error_of(begin(client, 501)) == (403, "storage_limit_reached")
    assert begin(client, 500).status_code == 200
    Plan.objects.update(max_stored_bytes=10_000)
    assert begin(client, 1).status_code == 200
    assert error_of(begin(client, 1)) == (403, "upload_limit_reached")
    client.post(f"{ROOT}{upload}/cancel/")
    assert begin(client, 1).status_code == 200


def test_a_part_has_at_most_so_many_bytes(client: Client, settings: Any) -> None:
    settings.MAX_PART_BYTES = 70_000
    upload = begin(client, 200_000).json()
    assert upload["max_part_bytes"] == 70_000
    refused = put(client, upload["id"], bytes(70_001), number=1)
    assert error_of(refused) == (413, "part_too_large")
    assert len(quarantines()) == 1


def test_cancelled_and_expired_uploads_leave_nothing(
    client: Client, scope: Principal, django_capture_on_commit_callbacks: Any
) -> None:
    kept, cancelled, expired = (begin(client, 10).json()["id"] for _ in range(3))
    for upload in (kept, cancelled, expired):
        put(client, upload, b"12345", number=1)
    Upload.objects.filter(public_id=expired).update(expires_at=timezone.now())
    with django_capture_on_commit_callbacks(execute=True):
        for _ in range(2):
            assert client.post(f"{ROOT}{cancelled}/cancel/").json()["status"] == "cancelled"
        assert (uploads.expire_uploads(), uploads.expire_uploads()) == (1, 0)
    assert client.get(f"{ROOT}{expired}/").json()["status"] == "expired"
    for upload in (cancelled, expired):
        assert error_of(finish(client, upload)) == (409, "upload_not_pending")
        assert client.get(f"{ROOT}{upload}/").json()["parts"] == []
    assert len(quarantines()) == 1
    # What is swept is of no upload.
    assert storage.sweep_quarantine(max_age_s=-60) == 0
    old = timezone.now() - uploads.ENDED_KEPT_FOR - timedelta(days=1)
    Upload.objects.filter(public_id=expired).update(ended_at=old)
    uploads.expire_uploads()
    assert error_of(client.get(f"{ROOT}{expired}/")) == (404, "not_found")
    assert AuditEvent.objects.filter(action="upload.expired", actor="system").count() == 1


def test_another_tenants_upload_is_absent(
    client: Client, alice: Principal, carol: Principal
) -> None:
    upload = begin(client, 10).json()["id"]
    stranger, own = client_of(carol), ROOT.replace("acme", "initech")
    absent = {"code": "not_found", "message": f"There is no upload '{upload}'.", "details": []}
    for path in ("", "parts/", "complete/", "cancel/"):
        body = {"data": SimpleUploadedFile("x", b"x")} if path == "parts/" else None
        call = stranger.get if path == "" else stranger.post
        content = {} if body else {"content_type": "application/json"}
        answer = call(f"{own}{upload}/{path}", body, **content)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["error"]) == (404, absent), path
    assert stranger.get(own).json()["count"] == 0
    with tenant_scope(alice.tenant_id):
        assert Upload.objects.get().status == "pending"


def test_a_join_that_was_killed_is_done_again(tmp_path: Path) -> None:
    for name, data in (("part_a", b"one"), ("part_b", b"two"), ("part_z", b"replaced")):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "parts.json").write_text('["part_b", "part_a", "part_b"]')
    (tmp_path / "upload.archive.partial").write_bytes(b"half")
    for _ in range(2):
        join_parts(tmp_path)
        assert (tmp_path / "upload.archive").read_bytes() == b"twoonetwo"
    assert not list(tmp_path.glob("part_*"))


def test_an_upload_of_one_part_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "part_a").write_bytes(b"one")
    (tmp_path / "parts.json").write_text('["part_a"]')
    inode = (tmp_path / "part_a").stat().st_ino
    join_parts(tmp_path)
    assert (tmp_path / "upload.archive").stat().st_ino == inode


def test_a_killed_cancel_leaves_nothing_for_an_hour(
    client: Client, packed: bytes, scope: Principal
) -> None:
    """Its row says that it ended: what it had is waste, however young."""
    upload = begin(client, len(packed)).json()["id"]
    put(client, upload, packed[:100], number=1)
    # Without on_commit: the web process died after the commit.
    assert client.post(f"{ROOT}{upload}/cancel/").json()["status"] == "cancelled"
    assert len(quarantines()) == 1
    assert storage.sweep_quarantine(3600) == 1 and not quarantines()
