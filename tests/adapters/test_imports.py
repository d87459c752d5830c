"""Imports from a hub over a socket: what is fetched, what is recorded, each failure by name."""

import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from adapters import imports
from adapters.models import AdapterVersion, Import
from adapters.validate import validate_version
from tenants.auth import Principal
from tenants.models import AuditEvent, Plan
from tests.adapters.conftest import both_files, client_of
from tests.adapters.fake_hub import COMMIT, TOKEN, FakeHub, Repo, running
from tests.adapters.test_api import error_of, quarantines

ROOT = "/api/tenants/acme/adapters/support-bot/imports/"


@pytest.fixture
def hub(adapter_files: Path, settings: Any) -> Iterator[FakeHub]:
    files = both_files(adapter_files)
    found = FakeHub()
    found.repos["org/good"] = Repo({**files, "adapter_model.bin": b"pickle", "README.md": b"x"})
    found.repos["org/gated"] = Repo(files, is_gated=True)
    found.repos["org/pickled"] = Repo({"adapter_config.json": b"{}", "adapter_model.bin": b"x"})
    found.repos["org/weights-only"] = Repo({"adapter_model.safetensors": b"x"})
    found.repos["org/lies"] = Repo(files, said_bytes={"adapter_model.safetensors": 10})
    found.repos["org/big"] = Repo(files, said_bytes={"adapter_model.safetensors": 1 << 40})
    settings.HF_ENDPOINT = found.url
    with running(found):
        yield found


def ask(client: Client, repo_id: str, **more: str) -> Any:
    body = {"repo_id": repo_id, **more}
    return client.post(ROOT, body, content_type="application/json")


def fetched(client: Client, repo_id: str, **more: str) -> dict[str, Any]:
    """The import's state after the worker's run of it."""
    answer = ask(client, repo_id, **more)
    assert answer.status_code == 202, answer.json()
    row = Import.objects.get(public_id=answer.json()["id"])
    imports.run_import(row.tenant_id, row.id, imports.seal(more.get("token", "")))
    found: dict[str, Any] = client.get(f"{ROOT}{row.public_id}/").json()
    return found


def test_it_works(client: Client, scope: Principal, hub: FakeHub) -> None:
    done = fetched(client, "org/good")
    assert (done["status"], done["commit"], done["version"]) == ("completed", COMMIT, 1)
    # The two files, and never the pickle beside them.
    assert hub.asked == ["adapter_config.json", "adapter_model.safetensors"]
    version = AdapterVersion.objects.get()
    validate_version(version.tenant_id, version.id)
    version.refresh_from_db()
    source = {"repo_id": "org/good", "revision": "main", "commit": COMMIT}
    assert version.state == "ready" and version.created_by == "alice"
    assert version.report["facts"]["source"] == source
    assert version.report["facts"]["num_modules"] == 4
    assert AuditEvent.objects.get(action="version.uploaded").after == source
    assert not quarantines()


@pytest.mark.parametrize(
    ("repo_id", "more", "code"),
    [
        ("org/absent", {}, "repo_absent"),
        ("org/good", {"revision": "v9"}, "revision_absent"),
        ("org/gated", {}, "repo_gated"),
        ("org/gated", {"token": "hf_other"}, "repo_gated"),
        ("org/pickled", {}, "no_safetensors"),
        ("org/weights-only", {}, "no_adapter_config"),
        ("org/big", {}, "too_large"),
    ],
)
def test_each_failure_has_its_name(
    repo_id: str, more: dict[str, str], code: str, client: Client, scope: Principal, hub: FakeHub
) -> None:
    done = fetched(client, repo_id, **more)
    assert (done["status"], done["error_code"], done["version"]) == ("failed", code, None)
    assert repo_id in done["error"]
    # Judged by the description alone.
    assert hub.asked == [] and not quarantines()


def test_the_token_is_kept_nowhere(
    client: Client, scope: Principal, hub: FakeHub, caplog: Any, monkeypatch: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HF_TOKEN", "hf_ofthismachine")
    done = fetched(client, "org/gated", token=TOKEN)
    assert done["status"] == "completed", done
    rows = [
        *Import.objects.values(),
        *AuditEvent.objects.values(),
        *AdapterVersion.objects.values(),
    ]
    assert TOKEN not in json.dumps(rows, default=str)
    assert TOKEN not in caplog.text and TOKEN not in imports.seal(TOKEN)
    assert imports.unseal(imports.seal(TOKEN)) == TOKEN and imports.unseal("nonsense") == ""


def test_a_run_that_was_killed_is_run_again(
    client: Client, scope: Principal, hub: FakeHub, django_capture_on_commit_callbacks: Any
) -> None:
    ids = [ask(client, "org/good").json()["id"], ask(client, "org/gated", token="x").json()["id"]]
    long_ago = timezone.now() - timedelta(minutes=1)
    Import.objects.update(status="running", attempt=1, heartbeat_at=long_ago)
    assert (imports.requeue_imports(), imports.requeue_imports()) == (2, 0)
    for row in Import.objects.all():
        imports.run_import(row.tenant_id, row.id, "")
        # A second message finds it done.
        imports.run_import(row.tenant_id, row.id, "")
    public, private = (client.get(f"{ROOT}{one}/").json() for one in ids)
    assert (public["status"], private["error_code"]) == ("completed", "token_lost")
    assert AdapterVersion.objects.count() == 1


def test_a_hub_that_is_away_is_asked_again_then_said(
    client: Client, scope: Principal, hub: FakeHub
) -> None:
    hub.is_down = True
    assert fetched(client, "org/good")["status"] == "queued"
    row = Import.objects.get()
    for _ in range(2):
        imports.run_import(row.tenant_id, row.id, "")
    row.refresh_from_db()
    assert (row.status, row.error_code) == ("failed", "hub_unreachable")
    hub.is_down = False
    # Other bytes than the description's: not taken.
    assert fetched(client, "org/lies")["status"] == "queued"
    assert not quarantines() and not AdapterVersion.objects.exists()


def test_limits_and_the_wall(client: Client, carol: Principal, hub: FakeHub) -> None:
    assert error_of(ask(client, "../../etc")) == (400, "invalid_request")
    assert error_of(ask(client, "")) == (400, "invalid_request")
    upload = ask(client, "org/good").json()["id"]
    foreign = ROOT.replace("acme", "initech")
    assert error_of(client_of(carol).get(f"{foreign}{upload}/")) == (404, "not_found")
    for _ in range(imports.MAX_RUNNING - 1):
        ask(client, "org/good")
    assert error_of(ask(client, "org/good")) == (403, "import_limit_reached")


def test_a_full_store_takes_no_import(client: Client, scope: Principal, hub: FakeHub) -> None:
    Plan.objects.update(max_stored_bytes=1000)
    assert fetched(client, "org/good")["error_code"] == "storage_limit_reached"
    assert hub.asked == []
