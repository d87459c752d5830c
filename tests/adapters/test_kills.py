"""The worker dies at each point of a validation and of an activation; beat's tasks do the rest.

Within a minute by beat's clock the version is where it belongs, and its bytes are there once.
"""

import io
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from adapters import activation, blobs, placement, settling, storage, validate
from adapters.activation import begin_activation
from adapters.models import Adapter, AdapterVersion, Placement
from adapters.publish import upload
from inference.adapter_format import digest as digest_of
from tenants import audit
from tenants.auth import Principal
from tests.adapters.conftest import both_files, make_ready, put_in_quarantine
from tests.adapters.fake_replica import FakeReplica, running

SETTLED_WITHIN = timedelta(seconds=60)
PERIODS_S = {
    name: settings.CELERY_BEAT_SCHEDULE[name]["schedule"]
    for name in ("requeue-stale-versions", "reconcile-placement")
}


class Killed(BaseException):
    """Nothing catches it, and nothing after it runs."""


def killed(*_: Any, **__: Any) -> None:
    raise Killed


def and_killed(call: Callable[..., Any]) -> Callable[..., None]:
    """It was done, and nobody was left to hear of it."""

    def done(*values: Any, **named: Any) -> None:
        call(*values, **named)
        raise Killed

    return done


def half_emptied(token: str) -> None:
    """As rmtree would be, killed after its first files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", _unlink_some)
        DISCARD(token)


def _unlink_some(folder: Path, ignore_errors: bool) -> None:
    for name in (storage.TAKEN_FILE, storage.CONFIG_FILE):
        (folder / name).unlink()
    raise Killed


DISCARD = storage.discard_quarantine


@dataclass
class Beat:
    """One task of beat's and whatever it queues, on a clock that does not wait."""

    now: datetime
    commits: Any

    def settles(
        self, name: str, task: Callable[[], object], is_settled: Callable[[], bool]
    ) -> bool:
        deadline = self.now + SETTLED_WITHIN
        while not is_settled() and self.now + timedelta(seconds=PERIODS_S[name]) <= deadline:
            self.now += timedelta(seconds=PERIODS_S[name])
            with self.commits(execute=True):
                task()
        return is_settled()


@pytest.fixture
def beat(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> Iterator[Beat]:
    from gateway.celery import app

    beat = Beat(timezone.now(), django_capture_on_commit_callbacks)
    monkeypatch.setattr(timezone, "now", lambda: beat.now)
    app.conf.task_always_eager = app.conf.task_eager_propagates = True
    yield beat
    app.conf.task_always_eager = False


def state_of(version: AdapterVersion) -> str:
    version.refresh_from_db()
    return version.state


def kept() -> list[Path]:
    return list(storage.store_dir().glob(f"{'[0-9a-f]' * 2}/*"))


def is_whole(folder: Path) -> bool:
    raw = (folder / storage.CONFIG_FILE).read_bytes()
    return digest_of(raw, folder / storage.WEIGHTS_FILE) == folder.name


def quarantines() -> list[Path]:
    """What is left after beat's next round, however young it is."""
    storage.sweep_quarantine(validate.QUARANTINE_MAX_AGE_S)
    return list((storage.store_dir() / "quarantine").iterdir())


def packed(files: dict[str, bytes]) -> dict[str, bytes]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return {storage.ARCHIVE_FILE: out.getvalue()}


def at_first_tick(run_child: Callable[..., Any], *values: Any, **named: Any) -> Any:
    """Waited for so briefly that the child still works."""
    return run_child(*values, **named, tick_s=1e-4)


# Where the worker dies → what is put in the place of what.
POINTS: dict[str, list[tuple[Any, str, Any]]] = {
    "claimed": [(validate, "run_child", killed)],
    "while the child runs": [
        (validate, "run_child", partial(at_first_tick, validate.run_child)),
        (validate, "_beat", killed),
    ],
    "the child is done": [(validate, "_same_bytes", killed)],
    "the row has the digest": [(storage, "publish_blob", killed)],
    "the bytes are staged": [(blobs, "rename_unless_there", killed)],
    "the bytes are in place": [(storage, "publish_blob", and_killed(storage.publish_blob))],
    "in the row's transaction": [(audit, "record", and_killed(audit.record))],
    "the row is ready": [(storage, "discard_quarantine", killed)],
    "the quarantine is half emptied": [(storage, "discard_quarantine", half_emptied)],
}


@pytest.mark.parametrize("pack", [dict, packed], ids=["files", "archive"])
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_validation_is_ended_by_another(
    point: str,
    pack: Callable[[dict[str, bytes]], dict[str, bytes]],
    scope: Principal,
    adapter_files: Path,
    beat: Beat,
) -> None:
    files = both_files(adapter_files)
    version = upload(scope, "a", put_in_quarantine(pack(files)))
    with pytest.MonkeyPatch.context() as patch:
        for place, name, dying in POINTS[point]:
            patch.setattr(place, name, dying)
        with pytest.raises(Killed):
            validate.validate_version(scope.tenant_id, version.id)
    # Whoever looks now sees bytes of that name whole, or none; and no version ready without them.
    assert all(is_whole(folder) for folder in kept())
    assert state_of(version) == "validating" or (version.quarantine == "" and kept())

    assert beat.settles(
        "requeue-stale-versions", validate.requeue_stale, lambda: state_of(version) == "ready"
    ), version.error
    [blob] = kept()
    assert blob == storage.blob_dir(version.digest) and is_whole(blob)
    assert sorted(path.name for path in blob.iterdir()) == sorted(files)
    assert quarantines() == []


@pytest.mark.parametrize("point", ["the child is done", "the row is rejected"])
def test_a_killed_rejection_is_ended_by_another(
    point: str, scope: Principal, adapter_files: Path, beat: Beat
) -> None:
    files = both_files(adapter_files) | {storage.CONFIG_FILE: b"{}"}
    version = upload(scope, "a", put_in_quarantine(files))
    place, name = {
        "the child is done": (validate, "_reject"),
        "the row is rejected": (storage, "discard_quarantine"),
    }[point]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(place, name, killed)
        validate.validate_version(scope.tenant_id, version.id)
    assert beat.settles(
        "requeue-stale-versions", validate.requeue_stale, lambda: state_of(version) == "rejected"
    )
    assert version.report["problems"] and kept() == quarantines() == []


def test_a_second_check_never_writes_into_published_bytes(
    scope: Principal, adapter_files: Path, beat: Beat
) -> None:
    """The killed one's archive is unpacked again while another version serves those bytes."""
    version = upload(scope, "a", put_in_quarantine(packed(both_files(adapter_files))))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(storage, "publish_blob", and_killed(storage.publish_blob))
        validate.validate_version(scope.tenant_id, version.id)
    [blob] = kept()
    before = [path.stat().st_mtime_ns for path in sorted(blob.iterdir())]
    assert beat.settles(
        "requeue-stale-versions", validate.requeue_stale, lambda: state_of(version) == "ready"
    )
    assert [path.stat().st_mtime_ns for path in sorted(blob.iterdir())] == before


# Killed after the claim, with the load done and not written down, between the phases, in phase two.
LOADING: dict[str, tuple[Any, str, Any]] = {
    "claimed": (placement, "load", killed),
    "loaded": (placement, "_record_load", killed),
    "between the phases": (settling, "finish_activation", killed),
    "in phase two": (activation, "end_canary", killed),
    "phase two is done": (settling, "finish_activation", and_killed(activation.finish_activation)),
}


@pytest.mark.parametrize("point", LOADING)
def test_a_killed_activation_is_ended_by_the_next_round(
    point: str, scope: Principal, house: Any, beat: Beat
) -> None:
    former, version = make_ready(scope, "a", seed=1), make_ready(scope, "a", seed=2)
    with running(FakeReplica()) as replica:
        house.REPLICA_URLS = [replica.url]
        begin_activation(scope, former)
        placement.reconcile()
        assert state_of(former) == "active"
        begin_activation(scope, version)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(*LOADING[point])
            placement.reconcile()
        # The pointer and both states moved together, or none did.
        states = (state_of(former), state_of(version))
        assert states in [("active", "activating"), ("ready", "active")]
        assert (Adapter.objects.get().active_version == version) is (states[1] == "active")

        assert beat.settles(
            "reconcile-placement", placement.reconcile, lambda: state_of(version) == "active"
        )
        assert state_of(former) == "ready" and Adapter.objects.get().active_version == version
        assert replica.loads.count(version.digest) == 1
    assert set(Placement.objects.values_list("state", flat=True)) == {"loaded"}
