"""A check says where it is, on two bytes that hold nothing else; the tenant's browsers hear it."""

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adapters import storage, validate
from adapters.models import AdapterVersion
from adapters.publish import upload
from adapters.validation.check import check
from adapters.validation.child import run_child
from adapters.validation.limits import ChildLimits
from adapters.validation.progress import Progress, progress_file, read_progress
from tenants import events
from tenants.auth import Principal
from tests.adapters.conftest import both_files, put_in_quarantine
from tests.adapters.test_nursery import CONFIG, request_for
from tests.tiny import make_adapter


def test_a_check_says_where_it_is(tmp_path: Path, base: Path) -> None:
    """Values are counted by bytes; a ready check ends its telling."""
    folder, seen = make_adapter(tmp_path / "one", base, targets=("q_proj", "v_proj")), []
    check(request_for(folder, base), lambda *told: seen.append(told))
    stages = [stage for stage, _ in seen]
    assert list(dict.fromkeys(stages)) == ["joining", "header", "values", "digest"]
    shares = [share for stage, share in seen if stage == "values"]
    assert shares[0] == 0 and shares == sorted(shares) and 0.5 < shares[-1] < 1


def test_the_parent_hears_of_it(tmp_path: Path, base: Path) -> None:
    def hear(progress: Progress | None) -> None:
        heard.append(progress)
        if progress is not None:
            raise InterruptedError

    # Whoever opens it waits for ever.
    os.mkfifo(tmp_path / CONFIG)
    heard: list[Progress | None] = []
    with pytest.raises(InterruptedError):
        run_child(request_for(tmp_path, base), ChildLimits(), hear, tick_s=0.02)
    assert heard[-1] == Progress("header", 0)


@pytest.mark.parametrize("written", [b"\0\0", b"\x06\0", b"\xff\xff", b"\x01\x65"])
def test_what_no_check_says_is_nothing(written: bytes) -> None:
    with progress_file() as descriptor:
        assert read_progress(descriptor) is None
        os.pwrite(descriptor, b"\x04\x28", 0)
        assert read_progress(descriptor) == Progress("values", 40)
        os.pwrite(descriptor, written, 0)
        assert read_progress(descriptor) is None


def test_nothing_more_fits_in() -> None:
    with progress_file() as descriptor:
        for change in (lambda: os.pwrite(descriptor, b"x", 2), lambda: os.ftruncate(descriptor, 0)):
            with pytest.raises(PermissionError):
                change()
        assert os.fstat(descriptor).st_size == 2


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def take(one: events.Sending) -> None:
        if one.event == "validation.changed":
            found.append(json.loads(one.data))

    monkeypatch.setattr(events.Sending, "send", take)
    return found


def test_browsers_hear_of_a_check_that_lasts(
    scope: Principal,
    adapter_files: Path,
    told: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    version = upload(scope, "a", put_in_quarantine(both_files(adapter_files)))

    def lasting(*values: Any, on_tick: Any) -> Any:
        on_tick(Progress("values", 40))
        return run_child(*values, on_tick=on_tick)

    monkeypatch.setattr(validate, "run_child", lasting)
    with django_capture_on_commit_callbacks(execute=True):
        validate.validate_version(scope.tenant_id, version.id)
    assert told[0] == {"adapter": "a", "number": 1, "stage": "values", "percent": 40}
    assert "validation.changed" in events.NOT_INVALIDATING


def test_who_was_taken_for_dead_tells_nothing(
    scope: Principal,
    adapter_files: Path,
    told: list[dict[str, Any]],
    django_capture_on_commit_callbacks: Any,
) -> None:
    version = upload(scope, "a", put_in_quarantine(both_files(adapter_files)))
    with django_capture_on_commit_callbacks(execute=True):
        claimed = validate._claim(version.id)
        assert claimed is not None
        validate._beat(claimed, Progress("values", 40))
        validate._beat(claimed, None)
        AdapterVersion.objects.update(attempt=2)
        validate._beat(claimed, Progress("values", 50))
    assert told == [{"adapter": "a", "number": 1, "stage": "values", "percent": 40}]


def test_a_store_that_takes_its_time_is_no_dead_worker(
    scope: Principal, adapter_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = upload(scope, "a", put_in_quarantine(both_files(adapter_files)))
    publish, seen = storage.publish_blob, []

    def slowly(token: str, digest: str) -> None:
        time.sleep(0.2)
        publish(token, digest)

    def beat(one: AdapterVersion, progress: Progress | None) -> None:
        seen.append(progress)
        real_beat(one, progress)

    real_beat = validate._beat
    monkeypatch.setattr(storage, "publish_blob", slowly)
    monkeypatch.setattr(validate, "_beat", beat)
    monkeypatch.setattr(validate, "BEAT_S", 0.03)
    # No beat is of the check.
    monkeypatch.setattr(validate, "run_child", partial(run_child, tick_s=60.0))
    validate.validate_version(scope.tenant_id, version.id)
    version.refresh_from_db()
    assert version.state == "ready" and version.heartbeat_at is None
    assert len(seen) > 2
