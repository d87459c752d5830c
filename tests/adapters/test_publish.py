"""The verbs: names, limits, claims, fences, retries, deletions, and what lies on disk after."""

import os
import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from adapters import storage, validate
from adapters.access import access_adapter, access_version, resolve, servable_models
from adapters.activation import begin_activation, finish_activation
from adapters.models import Adapter, AdapterVersion
from adapters.publish import create_adapter, delete_adapter, delete_version, retry, upload
from adapters.validate import requeue_stale, validate_version
from adapters.validation.limits import ChildLimits
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import AuditEvent, Plan, Tenant
from tenants.scope import tenant_scope
from tests.adapters.conftest import Publish, both_files, put_in_quarantine


def add(principal: Principal, name: str, files: dict[str, bytes]) -> AdapterVersion:
    return upload(principal, name, put_in_quarantine(files))


def active(version: AdapterVersion, principal: Principal) -> AdapterVersion:
    begin_activation(principal, version)
    assert finish_activation(version)
    return version


def test_it_works(scope: Principal, adapter_files: Path) -> None:
    version = add(scope, "support-bot", both_files(adapter_files))
    assert (version.state, version.number, version.created_by) == ("uploaded", 1, "alice")
    validate_version(scope.tenant_id, version.id)
    version.refresh_from_db()
    assert (version.state, version.rank, version.quarantine) == ("ready", 8, "")
    blob = storage.blob_dir(version.digest)
    assert sorted(path.name for path in blob.iterdir()) == [
        storage.CONFIG_FILE,
        storage.WEIGHTS_FILE,
    ]
    assert (blob / storage.WEIGHTS_FILE).read_bytes() == both_files(adapter_files)[
        storage.WEIGHTS_FILE
    ]
    assert not any((storage.store_dir() / "quarantine").iterdir())
    actions = set(AuditEvent.objects.values_list("action", flat=True))
    assert {"adapter.created", "version.uploaded", "version.ready"} <= actions


def test_a_rejected_upload_keeps_every_reason_and_no_bytes(
    scope: Principal, adapter_files: Path
) -> None:
    files = both_files(adapter_files) | {storage.CONFIG_FILE: b'{"peft_type": "LOHA", "bias": 1}'}
    version = add(scope, "a", files)
    validate_version(scope.tenant_id, version.id)
    version.refresh_from_db()
    assert version.state == "rejected" and version.digest == ""
    assert {p["where"] for p in version.report["problems"]} == {"peft_type", "bias"}
    assert set(version.report["problems"][0]) == {"code", "message", "where", "expected", "found"}
    assert not any((storage.store_dir() / "quarantine").iterdir())


def test_validation_is_done_once(scope: Principal, adapter_files: Path) -> None:
    version = add(scope, "a", both_files(adapter_files))
    validate_version(scope.tenant_id, version.id)
    audit = AuditEvent.objects.count()
    validate_version(scope.tenant_id, version.id)
    version.refresh_from_db()
    assert version.attempt == 1 and AuditEvent.objects.count() == audit


def test_the_same_bytes_again_are_said_to_be(scope: Principal, adapter_files: Path) -> None:
    for _ in range(2):
        version = add(scope, "a", both_files(adapter_files))
        validate_version(scope.tenant_id, version.id)
    version.refresh_from_db()
    assert [w["code"] for w in version.report["warnings"]][-1] == "same_bytes"


@pytest.mark.case("C81")
@pytest.mark.parametrize("name", ["tiny-base", "base"])
def test_the_base_models_name_is_reserved(name: str, scope: Principal) -> None:
    with pytest.raises(ApiError) as caught:
        create_adapter(scope, name)
    assert caught.value.code == "reserved_name"


@pytest.mark.case("C81")
@pytest.mark.parametrize(
    "name", ["", "A", "a b", "a/b", "a:b", "a@1", "-a", "a" * 64, "a\n", "ä", "../a", "a\0"]
)
def test_a_name_that_means_something_else_is_refused(name: str, scope: Principal) -> None:
    with pytest.raises(ApiError) as caught:
        create_adapter(scope, name)
    assert (caught.value.status, caught.value.code) == (400, "invalid_name")


def set_plan(**limits: Any) -> None:
    Plan.objects.update(**limits)


def test_the_plans_limits_hold(scope: Principal, adapter_files: Path) -> None:
    set_plan(max_adapters=1, max_versions=2)
    add(scope, "a", both_files(adapter_files))
    with pytest.raises(ApiError) as caught:
        create_adapter(scope, "b")
    assert caught.value.code == "adapter_limit_reached"
    second = add(scope, "a", both_files(adapter_files))
    with pytest.raises(ApiError) as caught:
        add(scope, "a", both_files(adapter_files))
    assert caught.value.code == "version_limit_reached"
    delete_version(scope, second)
    assert add(scope, "a", both_files(adapter_files)).number == 3


@pytest.mark.case("C32")
def test_the_plans_rank_and_the_fleets_both_hold(scope: Principal, adapter_files: Path) -> None:
    from adapters.models import Replica

    set_plan(max_rank=4)
    version = add(scope, "a", both_files(adapter_files))
    validate_version(scope.tenant_id, version.id)
    version.refresh_from_db()
    assert [p["code"] for p in version.report["problems"]] == ["rank_too_high"]
    set_plan(max_rank=64)
    Replica.objects.create(url="http://r", state={"max_lora_rank": 2})
    assert validate.max_rank(Plan.objects.get()) == 2


def test_a_worker_taken_for_dead_cannot_write_over_its_successor(
    scope: Principal, adapter_files: Path
) -> None:
    version = add(scope, "a", both_files(adapter_files))
    stale = validate._claim(version.id)
    assert stale is not None
    AdapterVersion.objects.update(heartbeat_at=timezone.now() - validate.STALE_AFTER)
    assert requeue_stale() == 1
    validate_version(scope.tenant_id, version.id)
    validate._reject(stale, {"problems": [], "warnings": [], "facts": {}})
    version.refresh_from_db()
    assert (version.state, version.attempt) == ("ready", 2)
    assert storage.blob_dir(version.digest).is_dir()


def test_interrupted_validations_end_as_failed_and_can_be_retried(
    scope: Principal, adapter_files: Path
) -> None:
    version = add(scope, "a", both_files(adapter_files))
    for _ in range(validate.MAX_ATTEMPTS):
        assert validate._claim(version.id) is not None
        AdapterVersion.objects.update(heartbeat_at=timezone.now() - validate.STALE_AFTER)
        requeue_stale()
    version.refresh_from_db()
    assert version.state == "failed" and "interrupted 3 times" in version.error
    retry(scope, version)
    validate_version(scope.tenant_id, version.id)
    version.refresh_from_db()
    assert (version.state, version.error) == ("ready", "")


def test_a_lost_message_is_sent_again(scope: Principal, adapter_files: Path) -> None:
    add(scope, "a", both_files(adapter_files))
    assert requeue_stale() == 0
    AdapterVersion.objects.update(heartbeat_at=timezone.now() - validate.REQUEUE_AFTER)
    assert requeue_stale() == 1
    assert requeue_stale() == 0


def test_a_child_over_its_limits_is_a_rejection(scope: Principal, adapter_files: Path) -> None:
    version = add(scope, "a", both_files(adapter_files))
    config = storage.quarantine_dir(version.quarantine) / storage.CONFIG_FILE
    config.unlink()
    # Whoever opens it waits for ever.
    os.mkfifo(config)
    validate_version(scope.tenant_id, version.id, ChildLimits(wall_s=0.1))
    version.refresh_from_db()
    assert version.state == "rejected"
    assert version.report["problems"][0]["code"] == "validation_limits"


def test_our_own_fault_is_tried_again_and_then_failed(
    scope: Principal, adapter_files: Path, house: Any, tmp_path: Path
) -> None:
    house.BASE_MODEL_PATH = tmp_path / "absent"
    version = add(scope, "a", both_files(adapter_files))
    for expected in ("uploaded", "uploaded", "failed"):
        validate_version(scope.tenant_id, version.id)
        version.refresh_from_db()
        assert version.state == expected
    assert "no config.json" in version.error


def test_pinned_versions_stay_for_two_generations(scope: Principal, published: Publish) -> None:
    versions = [active(published("a", seed=seed), scope) for seed in range(1, 5)]
    assert resolve(scope, "a").version == 4
    assert [resolve(scope, f"a@{n}").digest for n in (2, 3)] == [
        version.digest for version in versions[1:3]
    ]
    with pytest.raises(ApiError) as caught:
        resolve(scope, "a@1")
    assert caught.value.status == 404 and "Activate it" in caught.value.message


@pytest.mark.case("C81")
@pytest.mark.parametrize(
    "model",
    ["", "a:1", "tiny-base:a", "org/a", "a@0", "a@01", "a@-1", "a@9", "A", "a\0", "a ", "a" * 999],
)
def test_a_model_name_is_exact_and_never_the_base(
    model: str, scope: Principal, published: Publish
) -> None:
    active(published("a"), scope)
    with pytest.raises(ApiError) as caught:
        resolve(scope, model)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert caught.value.param == "model"


def test_the_base_and_active_adapters_are_listed(scope: Principal, published: Publish) -> None:
    published("unused", seed=2)
    active(published("a"), scope)
    found = servable_models(scope)
    assert [(one.id, one.owned_by) for one in found] == [("tiny-base", "grafthouse"), ("a", "acme")]
    assert resolve(scope, "tiny-base").digest is None


@pytest.mark.case("C84")
def test_carol_finds_nothing_of_alices(
    alice: Principal, carol: Principal, published: Publish
) -> None:
    version = published("a")
    with tenant_scope(alice.tenant_id):
        active(version, alice)
    for model in ("a", "a@1", version.digest, str(version.id)):
        with pytest.raises(ApiError) as caught:
            resolve(carol, model)
        assert caught.value.status == 404
    assert len(servable_models(carol)) == 1
    with tenant_scope(carol.tenant_id):
        for look in (lambda: access_adapter(carol, "a"), lambda: access_version(carol, "a", 1)):
            with pytest.raises(ApiError) as caught:
                look()
            assert caught.value.status == 404


def test_only_a_published_version_can_be_activated(scope: Principal, adapter_files: Path) -> None:
    version = add(scope, "a", both_files(adapter_files))
    for verb in (begin_activation, retry):
        with pytest.raises(ApiError) as caught:
            verb(scope, version)
        assert caught.value.status == 409


def test_a_newer_activation_takes_the_place_of_one_under_way(
    scope: Principal, published: Publish
) -> None:
    first, second = published("a", seed=1), published("a", seed=2)
    begin_activation(scope, first)
    begin_activation(scope, second)
    first.refresh_from_db()
    assert (first.state, second.state) == ("ready", "activating")
    stale = AdapterVersion.objects.get(id=first.id)
    assert not finish_activation(stale) or stale.state == "active"


def test_the_database_holds_one_active_version(scope: Principal, published: Publish) -> None:
    active(published("a", seed=1), scope)
    second = published("a", seed=2)
    with pytest.raises(IntegrityError), transaction.atomic():
        AdapterVersion.objects.filter(id=second.id).update(state="active")
    with pytest.raises(IntegrityError), transaction.atomic():
        AdapterVersion.objects.filter(id=second.id).update(digest="")


@pytest.mark.django_db(transaction=True)
def test_deleting_removes_bytes_that_nothing_else_needs(
    alice: Principal, carol: Principal, published: Publish
) -> None:
    mine, hers = published("a"), published("b", principal=carol)
    other = published("a", seed=2)
    blob = storage.blob_dir(mine.digest)
    with tenant_scope(alice.tenant_id):
        delete_adapter(alice, Adapter.objects.get())
    assert blob.is_dir() and not storage.blob_dir(other.digest).exists()
    with tenant_scope(carol.tenant_id):
        delete_version(carol, hers)
    assert not blob.exists()


def test_a_version_in_use_is_not_deleted(scope: Principal, published: Publish) -> None:
    version = active(published("a"), scope)
    with pytest.raises(ApiError) as caught:
        delete_version(scope, version)
    assert (caught.value.status, caught.value.code) == (409, "version_in_use")


def test_publishing_again_after_a_crash_halfway_is_fine(
    db: None, house: Any, adapter_files: Path
) -> None:
    digest = "a" * 64
    for _ in range(2):
        token = put_in_quarantine(both_files(adapter_files))
        staged = storage.quarantine_dir(token) / "blob"
        staged.mkdir()
        shutil.copy(adapter_files / storage.CONFIG_FILE, staged / storage.CONFIG_FILE)
        storage.publish_blob(token, digest)
        assert len(list(storage.blob_dir(digest).iterdir())) == 2


@pytest.mark.case("C55")
@pytest.mark.parametrize("bad", ["../x", "", "a" * 63, "A" * 64, "/etc"])
def test_only_our_own_names_become_paths(bad: str) -> None:
    for path_of in (storage.blob_dir, storage.quarantine_dir):
        with pytest.raises(ValueError):
            path_of(bad)


def test_forgotten_uploads_are_swept(scope: Principal, adapter_files: Path) -> None:
    kept = add(scope, "a", both_files(adapter_files))
    lost = storage.quarantine_dir(put_in_quarantine({}))
    old = time.time() - timedelta(hours=2).total_seconds()
    for folder in (lost, storage.quarantine_dir(kept.quarantine)):
        os.utime(folder, (old, old))
    assert storage.sweep_quarantine(validate.QUARANTINE_MAX_AGE_S) == 1
    assert not lost.exists() and storage.quarantine_dir(kept.quarantine).exists()
    assert Tenant.objects.count() == 1


def test_what_is_still_being_sent_is_not_forgotten(db: None) -> None:
    """A large file on a slow line: its folder is hours old, and its bytes still come."""
    sent = storage.quarantine_dir(put_in_quarantine({storage.WEIGHTS_FILE: b"so far"}))
    old = time.time() - timedelta(hours=2).total_seconds()
    os.utime(sent, (old, old))
    assert storage.sweep_quarantine(validate.QUARANTINE_MAX_AGE_S) == 0 and sent.exists()
    os.utime(sent / storage.WEIGHTS_FILE, (old, old))
    assert storage.sweep_quarantine(validate.QUARANTINE_MAX_AGE_S) == 1 and not sent.exists()


def test_a_quarantine_at_work_is_nobodys_waste(scope: Principal, adapter_files: Path) -> None:
    """Also one whose check was interrupted and begins again."""
    version = add(scope, "a", both_files(adapter_files))
    storage.mark_taken(version.quarantine)
    assert storage.sweep_quarantine(-60) == 0
    validate.validate_version(scope.tenant_id, version.id)
    version.refresh_from_db()
    assert version.state == "ready"
