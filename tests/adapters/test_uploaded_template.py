"""A chat template that comes with an adapter's files: where it is found, tried, and kept."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from adapters.access import resolve
from adapters.activation import begin_activation, finish_activation
from adapters.models import AdapterVersion, Replica
from adapters.profile import set_profile
from adapters.publish import upload
from adapters.validate import validate_version
from adapters.validation.template_file import MAX_FILE_BYTES
from tenants.auth import Principal
from tenants.models import AuditEvent
from tenants.scope import tenant_scope
from tests.adapters.conftest import both_files, put_in_quarantine
from tests.adapters.fake_hub import FakeHub, Repo, running
from tests.adapters.test_kills import packed
from tests.adapters.test_profile import ENDLESS
from tests.tiny import CHAT_TEMPLATE, make_adapter

OWN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
OTHER = OWN.replace("[", "<").replace("]", ">")
JINJA, TOKENIZER, JSON = "chat_template.jinja", "tokenizer_config.json", "chat_template.json"


@pytest.fixture(autouse=True)
def trained_on_this_base(house: Any) -> None:
    """What tests.tiny writes into a config; another name would be a warning of its own."""
    house.BASE_MODEL_NAME = "tiny"


def config_with(value: object) -> bytes:
    return json.dumps({"model_max_length": 512, "chat_template": value}).encode()


def checked(
    principal: Principal, files: dict[str, bytes], name: str = "a", **first: Any
) -> AdapterVersion:
    """The version after the real checks; first: its profile before them."""
    version = upload(principal, name, put_in_quarantine(files))
    AdapterVersion.objects.filter(id=version.id).update(profile={**version.profile, **first})
    validate_version(principal.tenant_id, version.id)
    version.refresh_from_db()
    return version


def activated(principal: Principal, version: AdapterVersion) -> AdapterVersion:
    assert finish_activation(begin_activation(principal, version))
    return version


NAMED = [{"name": "tool_use", "template": OTHER}, {"name": "default", "template": OWN}]
SOUND: dict[str, dict[str, bytes]] = {
    "jinja": {JINJA: OWN.encode()},
    "tokenizer_config": {TOKENIZER: config_with(OWN)},
    "of several": {TOKENIZER: config_with(NAMED)},
    "chat_template.json": {JSON: config_with(OWN)},
    "jinja first": {JINJA: OWN.encode(), TOKENIZER: config_with(OTHER)},
    "tokenizer without one": {TOKENIZER: config_with(None), JSON: config_with(OWN)},
}


@pytest.mark.parametrize("beside", SOUND)
def test_it_works(beside: str, scope: Principal, adapter_files: Path) -> None:
    version = checked(scope, both_files(adapter_files) | SOUND[beside], stop=["User:"])
    assert version.state == "ready" and version.report["warnings"] == []
    assert version.profile == {"stop": ["User:"], "chat_template": OWN}
    assert version.report["facts"]["chat_template"]["file"] in SOUND[beside]
    row = AuditEvent.objects.get(action="version.profile_changed")
    assert row.role == "system" and row.after == version.profile
    found = resolve(scope, "a") if activated(scope, version) else None
    assert found and found.profile and found.profile.chat_template == OWN


@pytest.mark.parametrize("own", [CHAT_TEMPLATE, CHAT_TEMPLATE + "\n", ""])
def test_the_base_models_own_is_nothing(own: str, scope: Principal, adapter_files: Path) -> None:
    """Trainers save the base's tokenizer beside every adapter."""
    files = both_files(adapter_files) | {TOKENIZER: config_with(own), JINJA: own.encode()}
    version = checked(scope, files)
    assert (version.state, version.profile) == ("ready", {})
    assert "chat_template" not in version.report["facts"]


HOSTILE: dict[str, tuple[str, bytes]] = {
    "syntax": (JINJA, b"{% for m in messages %}"),
    "outside of the sandbox": (JINJA, b"{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    "a file": (JINJA, b"{% include '/etc/passwd' %}"),
    "endless": (JINJA, ENDLESS.encode()),
    "much": (JINJA, b"{{ 'x' * 4000000000 }}"),
    "a range": (JINJA, b"{% for i in range(1000000000) %}x{% endfor %}"),
    "without the user": (TOKENIZER, config_with("{{ bos_token }}Hello")),
    "no text": (TOKENIZER, config_with(7)),
    "no default": (TOKENIZER, config_with([{"name": "tool_use", "template": OWN}])),
    "no objects": (TOKENIZER, config_with(["x"])),
    "a NUL": (TOKENIZER, config_with(OWN + "\0")),
    "half a pair": (TOKENIZER, config_with(OWN + "\ud800")),
    "no JSON": (TOKENIZER, b"{"),
    "deep": (TOKENIZER, b"[" * 100_000),
    "a list": (JSON, b"[]"),
    "not UTF-8": (JINJA, b"\xff" + OWN.encode()),
    "long": (JINJA, OWN.encode() + b" " * 65_536),
    "large": (TOKENIZER, config_with(None) + b" " * MAX_FILE_BYTES),
}


@pytest.mark.case("C53")
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_cannot_be_used_is_a_reason(kind: str, scope: Principal, adapter_files: Path) -> None:
    """A template of the tenant's is code: it runs in a sandbox, in a child with limits, or not."""
    name, content = HOSTILE[kind]
    version = checked(scope, both_files(adapter_files) | {name: content})
    assert version.state == "rejected", version.error
    problems = version.report["problems"]
    assert {(one["code"], one["where"]) for one in problems} == {("bad_chat_template", name)}
    assert all(one["expected"] and "leave it out" in one["message"] for one in problems)


def test_it_is_told_beside_the_other_reasons(scope: Principal, adapter_files: Path) -> None:
    files = both_files(adapter_files) | {"adapter_config.json": b"{}", JINJA: b"{{"}
    codes = {one["code"] for one in checked(scope, files).report["problems"]}
    assert "bad_chat_template" in codes and len(codes) > 1


def test_what_the_tenant_set_stays(scope: Principal, adapter_files: Path) -> None:
    files = both_files(adapter_files) | {JINJA: OWN.encode()}
    version = checked(scope, files, chat_template=OTHER)
    assert version.profile == {"chat_template": OTHER}
    [warning] = version.report["warnings"]
    assert (warning["code"], warning["where"]) == ("chat_template_unused", JINJA)


def test_each_version_brings_its_own(scope: Principal, adapter_files: Path) -> None:
    """A template that came with the files does not outlive them; one that was set does."""
    files = both_files(adapter_files)
    first = checked(scope, files | {JINJA: OWN.encode()})
    set_profile(scope, first, {**first.profile, "stop": ["User:"]})
    activated(scope, first)
    second = checked(scope, files | {JINJA: OTHER.encode()})
    assert second.profile == {"stop": ["User:"], "chat_template": OTHER}
    third = checked(scope, files)
    assert third.profile == {"stop": ["User:"]}
    set_profile(scope, first, {"chat_template": OTHER})
    assert checked(scope, files).profile == {"chat_template": OTHER}


def test_a_house_that_applies_none_says_so(scope: Principal, adapter_files: Path) -> None:
    Replica.objects.create(url="http://10.0.0.1:8000", dialect="vllm")
    version = checked(scope, both_files(adapter_files) | {JINJA: OWN.encode()})
    assert version.state == "ready" and version.profile == {}
    assert [one["code"] for one in version.report["warnings"]] == ["chat_template_unused"]


def zipped(files: dict[str, bytes]) -> dict[str, bytes]:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return {"upload.archive": out.getvalue()}


@pytest.mark.parametrize("pack", [packed, zipped], ids=["tar", "zip"])
@pytest.mark.parametrize("order", [1, -1])
def test_an_archives_is_the_one_beside_the_config(
    pack: Any, order: int, scope: Principal, adapter_files: Path
) -> None:
    """A folder of checkpoints holds one in each; whichever stands first in the archive."""
    files = {f"out/{name}": content for name, content in both_files(adapter_files).items()}
    files |= {f"out/{JINJA}": OWN.encode(), f"out/checkpoint-5/{JINJA}": b"{{", JINJA: b"{%"}
    version = checked(scope, pack(dict([*files.items()][::order])))
    assert version.state == "ready" and version.profile == {"chat_template": OWN}
    dropped = {one["where"] for one in version.report["warnings"]}
    assert dropped == {f"out/checkpoint-5/{JINJA}", JINJA}


def test_a_folders_is_taken(client: Client, alice: Principal, adapter_files: Path) -> None:
    files = both_files(adapter_files) | {TOKENIZER: config_with(OWN), "README.md": b"x"}
    sent = [SimpleUploadedFile(f"out/{name}", content) for name, content in files.items()]
    answer = client.post("/api/tenants/acme/adapters/a/versions/", {"files": sent})
    assert answer.status_code == 201, answer.content
    with tenant_scope(alice.tenant_id):
        version = AdapterVersion.objects.get()
        validate_version(alice.tenant_id, version.id)
        version.refresh_from_db()
    assert version.profile == {"chat_template": OWN}


def test_an_import_brings_it(
    alice: Principal, adapter_files: Path, house: Any, client: Client
) -> None:
    from adapters.imports import begin_import, run_import

    files = both_files(adapter_files) | {TOKENIZER: config_with(OWN), "tokenizer.json": b"{}"}
    with running(FakeHub({"owner/own": Repo(files)})) as hub, tenant_scope(alice.tenant_id):
        house.HF_ENDPOINT = hub.url
        row = begin_import(alice, "a", "owner/own", "main", "")
        run_import(alice.tenant_id, row.id, "")
        version = AdapterVersion.objects.get()
        validate_version(alice.tenant_id, version.id)
        version.refresh_from_db()
    assert version.state == "ready" and version.profile == {"chat_template": OWN}
    assert "tokenizer.json" not in hub.asked


def test_it_is_no_part_of_the_digest(scope: Principal, base: Path, tmp_path: Path) -> None:
    """Requests name it by its bytes; how it is asked is beside them."""
    files = both_files(make_adapter(tmp_path / "one", base, targets=("q_proj",)))
    with_one, without = checked(scope, files | {JINJA: OWN.encode()}), checked(scope, files)
    assert with_one.digest == without.digest and with_one.profile and not without.profile
