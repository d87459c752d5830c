"""The routes below /api: shapes, roles, uploads, and the wall between tenants."""

import io
import json
import tarfile
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from adapters import storage
from adapters.access import resolve
from adapters.api import views
from adapters.models import AdapterVersion, Placement, Replica, VersionState
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import AuditEvent, KeyScope, Plan, Role
from tenants.scope import tenant_scope
from tests import factories
from tests.adapters.conftest import Publish, both_files, client_of

ROOT = "/api/tenants/acme/adapters/"
VERSIONS = f"{ROOT}support-bot/versions/"


@pytest.fixture
def eager(django_capture_on_commit_callbacks: Any) -> Any:
    """Queued tasks run as Celery tasks, in this process, once the block's transaction ends."""
    from gateway.celery import app

    app.conf.task_always_eager = True
    app.conf.task_eager_propagates = True
    yield lambda: django_capture_on_commit_callbacks(execute=True)
    app.conf.task_always_eager = False


def files_of(folder: Path, **changes: bytes) -> dict[str, SimpleUploadedFile]:
    files = both_files(folder)
    contents = {"config": files[storage.CONFIG_FILE], "weights": files[storage.WEIGHTS_FILE]}
    # The client's file names lead outside on purpose.
    return {
        field: SimpleUploadedFile("../../evil", content)
        for field, content in (contents | changes).items()
    }


def zipped(folder: Path) -> SimpleUploadedFile:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in both_files(folder).items():
            archive.writestr(f"export/{name}", content)
    return SimpleUploadedFile("x.zip", out.getvalue())


def quarantines() -> list[Path]:
    folder = storage.store_dir() / "quarantine"
    return list(folder.iterdir()) if folder.is_dir() else []


def error_of(response: Any) -> tuple[int, str]:
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"code", "message", "details"}
    return response.status_code, response.json()["error"]["code"]


def test_it_works(client: Client, adapter_files: Path, eager: Any) -> None:
    made = client.post(ROOT, {"name": "support-bot"}, content_type="application/json")
    assert made.status_code == 201, made.json()
    with eager():
        response = client.post(VERSIONS, files_of(adapter_files))
    assert response.status_code == 201, response.json()
    assert (response.json()["state"], response.json()["number"]) == ("uploaded", 1)
    version = client.get(f"{VERSIONS}1/").json()
    assert version["state"] == "ready" and version["created_by"] == "alice"
    assert set(version) == {
        "number", "digest", "state", "report", "rank", "size_bytes", "created_by", "created_at",
        "activated_at", "is_served", "error",
    }  # fmt: skip
    assert version["report"]["facts"]["num_modules"] == 4
    adapter = client.get(f"{ROOT}support-bot/").json()
    assert set(adapter) == {
        "name", "description", "active_version", "canary", "num_versions", "keep",
        "retired_at", "created_at", "updated_at",
    }  # fmt: skip
    assert (adapter["num_versions"], adapter["active_version"]) == (1, None)
    listed = client.get(VERSIONS).json()
    assert set(listed) == {"count", "next", "previous", "results"} and listed["count"] == 1
    activated = client.post(f"{VERSIONS}1/activate/")
    assert activated.status_code == 202 and activated.json()["state"] == "activating"


def tarred(folder: Path, mode: str) -> SimpleUploadedFile:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        archive.add(folder, "export")
    return SimpleUploadedFile("x.zip", out.getvalue())


@pytest.mark.parametrize("kind", ["zip", "w", "w:gz"])
def test_an_archive_makes_the_adapter_and_its_version(
    kind: str, client: Client, adapter_files: Path, eager: Any
) -> None:
    """Its bytes say which it is, whatever it is called."""
    archive = zipped(adapter_files) if kind == "zip" else tarred(adapter_files, kind)
    with eager():
        assert client.post(VERSIONS, {"archive": archive}).status_code == 201
    assert client.get(f"{VERSIONS}1/").json()["state"] == "ready"
    assert client.get(ROOT).json()["results"][0]["name"] == "support-bot"


def test_a_folder_of_files_is_a_version(client: Client, adapter_files: Path, eager: Any) -> None:
    """Whatever else PEFT saved beside the two is left out; two of one name are no adapter."""
    folder = [
        SimpleUploadedFile(f"out/checkpoint-3/{name}", content)
        for name, content in {**both_files(adapter_files), "README.md": b"x"}.items()
    ]
    with eager():
        assert client.post(VERSIONS, {"files": folder}).status_code == 201
    assert client.get(f"{VERSIONS}1/").json()["state"] == "ready"
    for file in folder:
        file.seek(0)
    twice = [*folder, SimpleUploadedFile(f"a/{storage.CONFIG_FILE}", b"{}")]
    assert error_of(client.post(VERSIONS, {"files": twice})) == (400, "unexpected_file")
    pickled = [SimpleUploadedFile("a/adapter_model.bin", b"x")]
    response = client.post(VERSIONS, {"files": pickled})
    assert error_of(response) == (400, "missing_file")
    assert "safetensors" in response.json()["error"]["message"]
    assert not quarantines()


def test_a_rejected_upload_shows_every_reason(
    client: Client, adapter_files: Path, eager: Any
) -> None:
    config = json.loads((adapter_files / storage.CONFIG_FILE).read_text())
    config |= {"use_dora": True, "bias": "all"}
    with eager():
        client.post(VERSIONS, files_of(adapter_files, config=json.dumps(config).encode()))
    version = client.get(f"{VERSIONS}1/").json()
    assert version["state"] == "rejected" and version["digest"] is None
    assert {p["code"] for p in version["report"]["problems"]} == {
        "unsupported_use_dora",
        "unsupported_bias",
    }
    assert error_of(client.post(f"{VERSIONS}1/activate/")) == (409, "not_activatable")
    assert error_of(client.post(f"{VERSIONS}1/retry/")) == (409, "not_retryable")
    assert not quarantines()


def test_uploads_that_are_incomplete_leave_nothing(client: Client, adapter_files: Path) -> None:
    files = files_of(adapter_files)
    for body, code in (
        ({}, "missing_file"),
        ({"config": files["config"]}, "missing_file"),
        ({**files, "archive": SimpleUploadedFile("z", b"x")}, "missing_file"),
        ({**files, "extra": SimpleUploadedFile("z", b"x")}, "unexpected_file"),
    ):
        for file in files.values():
            file.seek(0)
        assert error_of(client.post(VERSIONS, body)) == (400, code)
    assert error_of(client.post(VERSIONS, b"{}", content_type="application/json"))[0] == 415
    assert not quarantines()
    assert client.get(ROOT).json()["count"] == 0


def test_an_upload_above_the_plans_limit_is_cut_off(client: Client, adapter_files: Path) -> None:
    Plan.objects.update(max_upload_bytes=10_000)
    response = client.post(VERSIONS, files_of(adapter_files, weights=bytes(300_000)))
    assert error_of(response) == (413, "upload_too_large")
    assert not quarantines()


def test_names_and_limits_are_answered(client: Client, adapter_files: Path) -> None:
    def create(**body: Any) -> tuple[int, str]:
        return error_of(client.post(ROOT, body, content_type="application/json"))

    assert create() == (400, "invalid_request")
    assert create(name="No Way") == (400, "invalid_name")
    assert create(name="tiny-base") == (400, "reserved_name")
    client.post(ROOT, {"name": "a"}, content_type="application/json")
    assert create(name="a") == (409, "adapter_exists")
    Plan.objects.update(max_adapters=1)
    assert create(name="b") == (403, "adapter_limit_reached")
    response = client.post(f"{ROOT}Bad%20Name/versions/", files_of(adapter_files))
    assert error_of(response) == (400, "invalid_name")
    assert not quarantines()


def test_deleting_is_audited_with_who_and_whence(
    client: Client, alice: Principal, published: Publish
) -> None:
    published("support-bot")
    assert client.delete(f"{VERSIONS}1/").status_code == 204
    assert error_of(client.get(f"{VERSIONS}1/")) == (404, "not_found")
    assert client.delete(f"{ROOT}support-bot/").status_code == 204
    with tenant_scope(alice.tenant_id):
        event = AuditEvent.objects.filter(action="adapter.deleted").get()
    assert (event.actor, event.target, event.ip) == ("alice", "support-bot", "127.0.0.1")


@pytest.mark.parametrize("name", ["%00", "a%00b", "..%2Fx", "%F0%9F%92%A9", "x" * 3000])
def test_a_name_that_cannot_be_is_404(name: str, client: Client) -> None:
    for path in (f"{ROOT}{name}/", f"{ROOT}{name}/versions/", f"{ROOT}{name}/versions/1/"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize("number", ["0", "99", "99999999999999999999999"])
def test_a_version_that_is_not_there_is_404(
    number: str, client: Client, published: Publish
) -> None:
    published("support-bot")
    assert error_of(client.get(f"{VERSIONS}{number}/")) == (404, "not_found")


PATHS = [
    ("get", ROOT),
    ("post", ROOT),
    ("get", f"{ROOT}support-bot/"),
    ("delete", f"{ROOT}support-bot/"),
    ("get", VERSIONS),
    ("post", VERSIONS),
    ("get", f"{VERSIONS}1/"),
    ("delete", f"{VERSIONS}1/"),
    ("post", f"{VERSIONS}1/activate/"),
    ("post", f"{VERSIONS}1/retry/"),
]


@pytest.mark.case("C84")
@pytest.mark.parametrize(("method", "path"), PATHS)
def test_carol_meets_404_and_nobody_401(
    method: str, path: str, carol: Principal, published: Publish, adapter_files: Path
) -> None:
    version = published("support-bot")
    body = files_of(adapter_files) if path == VERSIONS and method == "post" else None
    assert error_of(getattr(client_of(carol), method)(path, body)) == (404, "not_found")
    own = path.replace("acme", "initech")
    if method != "post" or path not in (ROOT, VERSIONS):
        expected = 200 if own == ROOT.replace("acme", "initech") else 404
        assert getattr(client_of(carol), method)(own).status_code == expected
    assert error_of(getattr(Client(), method)(path))[0] == 401
    with tenant_scope(version.tenant_id):
        assert AdapterVersion.objects.get().state == "ready"
    assert not quarantines()


@pytest.mark.parametrize(
    ("role", "may_write"),
    [(Role.OWNER, True), (Role.DEVELOPER, True), (Role.BILLING, False), (Role.VIEWER, False)],
)
def test_roles(role: str, may_write: bool, alice: Principal, published: Publish) -> None:
    published("support-bot")
    user = factories.make_user(f"someone-{role}")
    factories.add_member(factories.get_acme(), user, role)
    client = Client()
    client.force_login(user)
    assert client.get(VERSIONS).status_code == 200
    response = client.post(f"{VERSIONS}1/activate/")
    assert response.status_code == (202 if may_write else 403)


def test_a_version_is_served_exactly_when_its_name_resolves(
    client: Client, alice: Principal, published: Publish, django_assert_max_num_queries: Any
) -> None:
    versions = [published("support-bot", seed=seed) for seed in range(5)]
    with tenant_scope(alice.tenant_id):
        for number, version in enumerate(versions[:4]):
            # The newest upload was never active; the first three were, one after another.
            version.superseded_at = (
                timezone.now() + timedelta(seconds=number) if number < 3 else None
            )
            version.state = VersionState.ACTIVE if number == 3 else VersionState.READY
            version.save()
    with django_assert_max_num_queries(8):
        rows = client.get(VERSIONS).json()["results"]
    served = {row["number"] for row in rows if row["is_served"]}
    assert served == {2, 3, 4}
    for row in rows:
        one = client.get(f"{VERSIONS}{row['number']}/").json()
        assert one["is_served"] == row["is_served"]
        if row["is_served"]:
            assert resolve(alice, f"support-bot@{row['number']}").digest == row["digest"]
        else:
            with pytest.raises(ApiError, match="not served"):
                resolve(alice, f"support-bot@{row['number']}")


def test_a_key_needs_the_scope(alice: Principal, published: Publish) -> None:
    from tenants.keys import create_key

    published("support-bot")
    for scopes, expected in (([KeyScope.ADAPTERS], 202), ([KeyScope.INFERENCE], 403)):
        with tenant_scope(alice.tenant_id):
            secret = create_key(alice, "ci", list(scopes)).raw
        headers = {"Authorization": f"Bearer {secret}"}
        response = Client().post(f"{VERSIONS}1/activate/", headers=headers)
        assert response.status_code == expected, response.json()


def test_a_session_without_its_csrf_token_changes_nothing(
    alice: Principal, adapter_files: Path
) -> None:
    client = Client(enforce_csrf_checks=True)
    from tenants.models import User

    client.force_login(User.objects.get(id=alice.user_id))
    assert error_of(client.post(VERSIONS, files_of(adapter_files)))[0] == 403
    assert not quarantines()
    # With it the check reads the form first; the files arrive in quarantine all the same.
    client.cookies["csrftoken"] = token = "x" * 32
    response = client.post(VERSIONS, files_of(adapter_files), headers={"X-CSRFToken": token})
    assert response.status_code == 201, response.json()
    assert len(quarantines()) == 1


def test_the_fleet_is_the_operators(client: Client, alice: Principal) -> None:
    replica = Replica.objects.create(url="http://r:1", healthy=True, state={"num_running": 3})
    Placement.objects.create(
        digest="a" * 64, replica=replica, state="loaded", next_attempt_at="2026-01-01T00:00:00Z"
    )
    assert error_of(client.get("/api/fleet/")) == (403, "permission_denied")
    oscar = Client()
    oscar.force_login(factories.make_oscar())
    found = oscar.get("/api/fleet/").json()["results"][0]
    assert (found["url"], found["healthy"], found["state"]) == (
        "http://r:1",
        True,
        {"num_running": 3},
    )
    assert found["placements"][0]["digest"] == "a" * 64
    for page in ("adapter", "adapterversion", "replica", "placement"):
        assert oscar.get(f"/admin/adapters/{page}/").status_code == 200


@pytest.mark.parametrize("method", ["activate", "delete"])
@pytest.mark.parametrize("what", ["version", "adapter"])
def test_what_is_deleted_while_it_is_asked_for_is_absent(
    method: str,
    what: str,
    alice: Principal,
    published: Publish,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = published("support-bot")
    inner = views.access_version

    def access_then_lose(*args: Any) -> AdapterVersion:
        found = inner(*args)
        rows = {"version": found, "adapter": found.adapter}
        type(rows[what]).objects.filter(id=rows[what].id).delete()
        return found

    monkeypatch.setattr(views, "access_version", access_then_lose)
    client, url = client_of(alice), f"{VERSIONS}{version.number}/"
    answer = client.delete(url) if method == "delete" else client.post(f"{url}activate/")
    assert answer.status_code == 404, answer.content
    assert answer.json()["error"]["code"] == "not_found"
