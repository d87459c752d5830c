"""The folder and the bucket hold the same promises; the bucket is a real server over a socket."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import pytest
from django.utils import timezone

from adapters import storage
from adapters.blobs import CONFIG_FILE, FILES, WEIGHTS_FILE, BlobError, Blobs, FolderBlobs
from adapters.models import AdapterVersion, Placement, Replica
from adapters.placement import reconcile
from adapters.publish import delete_version
from adapters.s3 import S3Blobs
from adapters.validate import validate_version
from inference import adapter_format
from tenants.auth import Principal
from tenants.scope import tenant_scope
from tests.adapters.conftest import Publish, make_ready
from tests.adapters.fake_replica import FakeReplica, running
from tests.services import free_port, wait_for_port

BUCKET = "adapters"


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_port(port, 30)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty bucket, by a client of the test's own."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    found = boto3.resource("s3", endpoint_url=s3_server).Bucket(BUCKET)
    found.create()
    yield found
    found.objects.all().delete()


@pytest.fixture
def in_bucket(bucket: Any, s3_server: str, house: Any) -> Any:
    """The house keeps its bytes in the bucket."""
    house.ADAPTER_S3_BUCKET, house.ADAPTER_S3_ENDPOINT = BUCKET, s3_server
    return bucket


@pytest.fixture(params=["folder", "bucket"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "folder":
        return FolderBlobs(tmp_path / "store")
    request.getfixturevalue("bucket")
    endpoint = request.getfixturevalue("s3_server")
    return S3Blobs(tmp_path / "store", BUCKET, "adapters/", endpoint)


@pytest.fixture
def source(adapter_files: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "quarantine"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_bytes((adapter_files / name).read_bytes())
    return folder


def digest_of(folder: Path) -> str:
    return adapter_format.digest((folder / CONFIG_FILE).read_bytes(), folder / WEIGHTS_FILE)


def keys(bucket: Any) -> list[str]:
    return sorted(one.key for one in bucket.objects.all())


def test_it_works(blobs: Blobs, source: Path) -> None:
    digest = digest_of(source)
    with pytest.raises(BlobError, match=digest):
        blobs.local_dir(digest)
    for _ in range(2):
        blobs.publish(digest, source)
    found = blobs.local_dir(digest)
    assert sorted(path.name for path in found.iterdir()) == sorted(FILES)
    assert digest_of(found) == digest
    # Wanted again while it goes: it stays.
    assert not blobs.delete(digest, lambda: True)
    assert digest_of(blobs.local_dir(digest)) == digest
    assert blobs.delete(digest, lambda: False)
    assert not blobs.delete(digest, lambda: False)
    with pytest.raises(BlobError):
        blobs.local_dir(digest)


class Killed(BaseException):
    pass


def killed() -> bool:
    raise Killed


@pytest.mark.parametrize("is_needed", [True, False])
def test_a_delete_that_was_killed_is_ended(blobs: Blobs, source: Path, is_needed: bool) -> None:
    """Needed bytes come back whole, others go; what is younger may still be under way."""
    digest = digest_of(source)
    blobs.publish(digest, source)
    with pytest.raises(Killed):
        blobs.delete(digest, killed)
    assert blobs.end_deletes(3600, lambda _: is_needed) == 0
    assert blobs.end_deletes(-3600, lambda _: is_needed) == 1
    assert blobs.end_deletes(-3600, lambda _: is_needed) == 0
    # Of a bucket's local copy too, which the killed one had not come to.
    assert blobs.delete(digest, lambda: is_needed) is (not is_needed and isinstance(blobs, S3Blobs))
    if is_needed:
        assert digest_of(blobs.local_dir(digest)) == digest
        return
    with pytest.raises(BlobError):
        blobs.local_dir(digest)


def test_what_the_bucket_gives_is_checked_by_digest(
    bucket: Any, s3_server: str, source: Path, tmp_path: Path
) -> None:
    digest = digest_of(source)
    S3Blobs(tmp_path / "a", BUCKET, "p/", s3_server).publish(digest, source)
    assert keys(bucket) == [f"p/{digest[:2]}/{digest}/{name}" for name in sorted(FILES)]
    # Another machine, with an empty cache.
    other = S3Blobs(tmp_path / "b", BUCKET, "p/", s3_server)
    assert digest_of(other.local_dir(digest)) == digest
    bucket.put_object(Key=f"p/{digest[:2]}/{digest}/{WEIGHTS_FILE}", Body=b"others")
    # What is there is not asked for again; what is fetched is refused, and nothing of it stays.
    assert digest_of(other.local_dir(digest)) == digest
    third = S3Blobs(tmp_path / "c", BUCKET, "p/", s3_server)
    with pytest.raises(BlobError, match="have the digest"):
        third.local_dir(digest)
    assert not [path for path in (tmp_path / "c").rglob("*") if path.is_file()]


@pytest.mark.django_db
def test_a_replica_finds_the_bytes_that_its_machine_had_lost(
    in_bucket: Any, house: Any, alice: Principal, published: Publish
) -> None:
    """From upload to load with a bucket; the cache is emptied between."""
    version = published("support-bot")
    assert len(keys(in_bucket)) == 2
    assert storage.sweep_cache(max_age_s=-60) == 1
    assert not storage.blob_dir(version.digest).exists()
    with running(FakeReplica()) as replica:
        house.REPLICA_URLS = [replica.url]
        with tenant_scope(alice.tenant_id):
            AdapterVersion.objects.filter(id=version.id).update(state="activating")
        reconcile()
        assert Placement.objects.get().state == "loaded"
        assert digest_of(storage.blob_dir(version.digest)) == version.digest
        # In use: neither swept nor deleted.
        assert storage.sweep_cache(max_age_s=-60) == 0
        assert not storage.delete_blob_if_unused(version.digest)


@pytest.mark.django_db
def test_deleting_a_version_empties_the_bucket(
    in_bucket: Any,
    alice: Principal,
    published: Publish,
    django_capture_on_commit_callbacks: Any,
) -> None:
    version = published("support-bot")
    with django_capture_on_commit_callbacks(execute=True), tenant_scope(alice.tenant_id):
        delete_version(alice, version)
    assert keys(in_bucket) == []


@pytest.mark.django_db
def test_a_bucket_that_is_away_is_said_and_tried_again(
    in_bucket: Any, house: Any, alice: Principal, published: Publish
) -> None:
    version = published("first")
    storage.sweep_cache(max_age_s=-60)
    house.ADAPTER_S3_BUCKET = "absent"
    with running(FakeReplica()) as replica:
        house.REPLICA_URLS = [replica.url]
        with tenant_scope(alice.tenant_id):
            AdapterVersion.objects.filter(id=version.id).update(state="activating")
        reconcile()
        placement = Placement.objects.get()
        assert (placement.state, Replica.objects.get().healthy) == ("pending", True)
        assert "the bucket did not give" in placement.error
    with pytest.raises(AssertionError):
        published("second", seed=2)
    with tenant_scope(alice.tenant_id):
        late = AdapterVersion.objects.get(adapter__name="second")
        assert (late.state, late.quarantine != "") == ("uploaded", True)
        house.ADAPTER_S3_BUCKET = BUCKET
        validate_version(alice.tenant_id, late.id)
        late.refresh_from_db()
        assert late.state == "ready"


@pytest.fixture(params=["folder", "bucket"])
def kept(request: pytest.FixtureRequest) -> Callable[[], set[str]]:
    """The house keeps its bytes in one or the other; what that is now, by digest."""
    if request.param == "bucket":
        request.getfixturevalue("in_bucket")
    return lambda: set().union(*storage.blobs().pages(-60))


def test_what_a_killed_delete_left_is_swept(kept: Callable[[], set[str]], scope: Principal) -> None:
    """Killed between its commit and the hook that removes the bytes: a test's transaction never
    commits. What a version of anyone or a replica needs stays, and what is young.
    """
    gone, placed, needed = (make_ready(scope, "a", seed) for seed in (1, 2, 3))
    replica = Replica.objects.create(url="http://r")
    Placement.objects.create(digest=placed.digest, replica=replica, next_attempt_at=timezone.now())
    for version in (gone, placed):
        delete_version(scope, version)
    before = {gone.digest, placed.digest, needed.digest}
    assert storage.sweep_blobs(3600) == 0 and kept() == before
    assert storage.sweep_blobs(-60) == 1 and kept() == before - {gone.digest}
    assert storage.sweep_blobs(-60) == 0
    # The reconciler saw it unloaded, and was killed before it removed the bytes.
    Placement.objects.all().delete()
    assert storage.sweep_blobs(-60) == 1 and kept() == {needed.digest}
    assert digest_of(storage.local_blob(needed.digest)) == needed.digest


def test_a_sweep_that_was_killed_is_ended_by_the_next(
    kept: Callable[[], set[str]], scope: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it asked, after it asked, and with the bytes already out of sight."""
    digest = make_ready(scope, "a").digest
    AdapterVersion.objects.all().delete()
    real = storage.is_needed
    for num_questions in (0, 1):
        with monkeypatch.context() as patch:
            patch.setattr(storage, "is_needed", killed_after(num_questions, real))
            with pytest.raises(Killed):
                storage.sweep_blobs(-60)
    assert digest not in kept()
    assert storage.sweep_trash(-60) == 1
    assert storage.sweep_blobs(-60) == 0
    # Of a bucket's local copy, which the killed one had not come to.
    storage.sweep_cache(-60)
    assert not storage.blob_dir(digest).exists()


def killed_after(number: int, call: Callable[[str], bool]) -> Callable[[str], bool]:
    """The call, so many times."""
    asked = count()

    def ask(digest: str) -> bool:
        if next(asked) == number:
            raise Killed
        return call(digest)

    return ask


@pytest.mark.django_db
def test_a_sweep_killed_between_two_files_of_a_bucket(
    in_bucket: Any, scope: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_ready(scope, "a")
    AdapterVersion.objects.all().delete()
    real, moved = S3Blobs._move, count()

    def move(self: S3Blobs, key: str, to: str) -> bool:
        if next(moved):
            raise Killed
        return real(self, key, to)

    with monkeypatch.context() as patch:
        patch.setattr(S3Blobs, "_move", move)
        with pytest.raises(Killed):
            storage.sweep_blobs(-60)
    assert len(keys(in_bucket)) == 2
    assert (storage.sweep_blobs(-60), storage.sweep_trash(-60)) == (1, 1)
    assert keys(in_bucket) == []


@pytest.mark.parametrize("num_questions", [0, 1])
def test_an_upload_of_the_same_bytes_beside_a_sweep_keeps_them(
    kept: Callable[[], set[str]],
    scope: Principal,
    monkeypatch: pytest.MonkeyPatch,
    num_questions: int,
) -> None:
    """Its row is there before its bytes move, so whichever comes first, they stay."""
    digest = make_ready(scope, "a").digest
    AdapterVersion.objects.all().delete()
    real, asked = storage.is_needed, count()

    def upload_then_ask(one: str) -> bool:
        if next(asked) == num_questions:
            make_ready(scope, "b")
        return real(one)

    monkeypatch.setattr(storage, "is_needed", upload_then_ask)
    assert storage.sweep_blobs(-60) == 0
    assert kept() == {digest}
    assert storage.sweep_trash(-60) == 0
    assert digest_of(storage.local_blob(digest)) == digest


def test_a_bucket_that_cannot_be_listed_is_said(
    in_bucket: Any, house: Any, db: None, caplog: pytest.LogCaptureFixture
) -> None:
    house.ADAPTER_S3_BUCKET = "absent"
    assert storage.sweep_blobs(0) == 0
    assert "cannot be listed" in caplog.text
