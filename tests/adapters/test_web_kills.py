"""The web process dies at each write step of each request that changes something.

What is there then is what was there before, or all of what the request does, with its audit rows;
the same request again does the rest, and what is left in the store's folder is swept.
"""

import base64
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from adapters import placement, storage
from adapters.activation import begin_activation, finish_activation
from adapters.aliases import create_alias
from adapters.canary import find, set_canary
from adapters.models import Adapter, AdapterVersion, ModelName, Upload
from adapters.publish import upload
from adapters.upload_parts import ArrivedPart, add_part
from adapters.uploads import Announced, open_upload
from adapters.validate import validate_version
from tenants.auth import Principal
from tenants.keys import create_key
from tenants.models import AuditEvent, KeyScope, Plan
from tenants.scope import tenant_scope
from tests.adapters.conftest import both_files, make_ready, put_in_quarantine
from tests.adapters.dying_web import send
from tests.adapters.fake_replica import FakeReplica, running
from tests.adapters.test_kills import is_whole, kept, packed
from tests.adapters.test_uploads import sha256

ROOT_DIR = Path(__file__).resolve().parents[2]
ROOT = "/api/tenants/acme"
Order = dict[str, Any]


@dataclass(frozen=True)
class Web:
    """Requests of one key, to a web process that dies when it is told to."""

    process: subprocess.Popen[str]
    fixed: dict[str, str]

    def again(self, order: Order) -> int:
        """By a web process that lives: this one."""
        return send({**self.fixed, **order})

    def ask(self, order: Order, die_at: int) -> dict[str, Any]:
        into, out = self.process.stdin, self.process.stdout
        assert into is not None and out is not None
        into.write(json.dumps({**self.fixed, **order, "die_at": die_at}) + "\n")
        into.flush()
        answer: dict[str, Any] = json.loads(out.readline())
        return answer


@pytest.fixture(scope="module")
def dying_web(django_db_setup: None, base: Path) -> Iterator[subprocess.Popen[str]]:
    if connection.vendor == "sqlite":
        pytest.skip("the test database is in memory: no other process sees it")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.adapters.dying_web", connection.settings_dict["NAME"]],
        cwd=ROOT_DIR,
        env=os.environ | {"MODEL": str(base)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def web(
    dying_web: subprocess.Popen[str], transactional_db: None, alice: Principal, house: Any
) -> Web:
    Plan.objects.update(max_open_uploads=100)
    key = create_key(alice, "web", [KeyScope.ADAPTERS.value]).raw
    return Web(dying_web, {"key": key, "store": str(house.ADAPTER_STORE_DIR)})


@dataclass(frozen=True)
class Case:
    """One kind of request. order: makes what it needs under a name, and says what is asked.

    again: what the same request is answered when it is sent again, whichever way the first ended.
    """

    order: Callable[["Case", Principal, str], Order]
    files: Path
    again: frozenset[int]

    def __call__(self, principal: Principal, name: str) -> Order:
        return self.order(self, principal, name)


def post(path: str, **body: Any) -> Order:
    return {"method": "POST", "path": f"{ROOT}/{path}", "json": body}


def version_path(name: str, number: int = 1) -> str:
    return f"adapters/{name}/versions/{number}/"


def as_text(files: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in files.items()}


def new_version(case: Case, principal: Principal, name: str) -> Order:
    """Of an adapter that the upload makes."""
    files = both_files(case.files)
    sent = {"config": files[storage.CONFIG_FILE], "weights": files[storage.WEIGHTS_FILE]}
    return {"path": f"{ROOT}/adapters/{name}/versions/", "files": as_text(sent)}


def opened(principal: Principal, name: str, files: Path) -> tuple[Upload, bytes]:
    [archive] = packed(both_files(files)).values()
    return open_upload(principal, Announced("a.tar", len(archive), "adapter", name)), archive


def give(principal: Principal, row: Upload, number: int, data: bytes) -> None:
    token = put_in_quarantine({storage.PART_FILE: data})
    add_part(principal, row, number, ArrivedPart(token, len(data), sha256(data)))
    storage.discard_quarantine(token)


def opening(case: Case, principal: Principal, name: str) -> Order:
    body = {"filename": "a.tar", "bytes": 10, "purpose": "adapter", "adapter": name}
    return post("uploads/", **body)


def part(case: Case, principal: Principal, name: str) -> Order:
    """In the place of another of its number."""
    row, archive = opened(principal, name, case.files)
    give(principal, row, 1, archive[:100])
    path = f"{ROOT}/uploads/{row.public_id}/parts/?number=1&sha256={sha256(archive[:99])}"
    return {"path": path, "files": as_text({"data": archive[:99]})}


def completing(case: Case, principal: Principal, name: str) -> Order:
    row, archive = opened(principal, name, case.files)
    give(principal, row, 1, archive[:1000])
    give(principal, row, 2, archive[1000:])
    return post(f"uploads/{row.public_id}/complete/")


def cancelling(case: Case, principal: Principal, name: str) -> Order:
    row, archive = opened(principal, name, case.files)
    give(principal, row, 1, archive[:1000])
    return post(f"uploads/{row.public_id}/cancel/")


def one_active(principal: Principal, name: str) -> tuple[AdapterVersion, AdapterVersion]:
    """(ready, active)"""
    versions = [make_ready(principal, name, seed=hash((name, n))) for n in range(2)]
    finish_activation(begin_activation(principal, versions[1]))
    return versions[0], versions[1]


def activating(case: Case, principal: Principal, name: str) -> Order:
    """While another is on its way."""
    first, _active = one_active(principal, name)
    begin_activation(principal, make_ready(principal, name, seed=hash(name)))
    return post(version_path(name, first.number) + "activate/")


def deleting(case: Case, principal: Principal, name: str) -> Order:
    one_active(principal, name)
    return {"method": "DELETE", "path": f"{ROOT}/{version_path(name)}"}


def deleting_unchecked(case: Case, principal: Principal, name: str) -> Order:
    upload(principal, name, put_in_quarantine(both_files(case.files)))
    return {"method": "DELETE", "path": f"{ROOT}/{version_path(name)}"}


def deleting_adapter(case: Case, principal: Principal, name: str) -> Order:
    ready, _active = one_active(principal, name)
    create_alias(principal, f"{name}-alias", ready.adapter, ready.number)
    return {"method": "DELETE", "path": f"{ROOT}/adapters/{name}/"}


def retiring_adapter(case: Case, principal: Principal, name: str) -> Order:
    ready, _active = one_active(principal, name)
    set_canary(principal, ready, 10)
    return post(f"adapters/{name}/retire/")


def aliasing(case: Case, principal: Principal, name: str) -> Order:
    ready, _active = one_active(principal, name)
    return post("aliases/", name=f"{name}-alias", adapter=name, version=ready.number)


def canary(case: Case, principal: Principal, name: str) -> Order:
    """In the place of another."""
    ready, _active = one_active(principal, name)
    set_canary(principal, ready, 10)
    third = make_ready(principal, name, seed=hash(name))
    body = {"version": third.number, "percent": 20}
    return {"method": "PUT", "path": f"{ROOT}/adapters/{name}/canary/", "json": body}


CASES: dict[str, tuple[Callable[[Case, Principal, str], Order], set[int]]] = {
    "upload": (new_version, {201}),
    "open": (opening, {200}),
    "part": (part, {200}),
    "complete": (completing, {200}),
    "cancel": (cancelling, {200}),
    "activate": (activating, {202}),
    "delete": (deleting, {204, 404}),
    "delete-unchecked": (deleting_unchecked, {204, 404}),
    "delete-adapter": (deleting_adapter, {204, 404}),
    "retire-adapter": (retiring_adapter, {200}),
    "alias": (aliasing, {201, 409}),
    "canary": (canary, {200}),
}


FIRST = {200, 201, 202, 204}
# Sent again they make another one: a client that heard nothing looks before it does.
MADE_TWICE = {"upload", "open"}
KILLED = {"killed_by": 9}


def snapshot(name: str) -> dict[str, Any]:
    """All that rows say of one adapter, without the name."""
    adapter = Adapter.objects.select_related("active_version").filter(name=name).first()
    uploads = Upload.objects.filter(adapter_name=name).order_by("id")
    ids = [one.public_id for one in uploads]
    canaries = [(c.version.number, c.percent) for a in [adapter] if a and (c := find(a))]
    audited = AuditEvent.objects.filter(
        target__regex=rf"^({'|'.join([re.escape(name), *ids])})($|@|-)"
    )
    return {
        "active": adapter and adapter.active_version and adapter.active_version.number,
        "retired": adapter and adapter.retired_at is not None,
        "versions": [
            (one.number, one.state, bool(one.digest), bool(one.quarantine), one.profile)
            for one in AdapterVersion.objects.filter(adapter__name=name).order_by("number")
        ],
        "names": [
            (one.name.removeprefix(name), one.version and one.version.number)
            for one in ModelName.objects.filter(adapter__name=name).order_by("name")
        ],
        "uploads": [(one.status, one.parts.count(), one.version_id is None) for one in uploads],
        "parts": [p.num_bytes for one in uploads for p in one.parts.order_by("number")],
        "canaries": canaries,
        "audit": Counter(audited.values_list("action", flat=True)),
    }


def sweep() -> None:
    """All that an hour makes of what no row knows."""
    storage.sweep_quarantine(-1.0)
    storage.sweep_trash(-1.0)
    storage.sweep_blobs(-1.0)


def require_in_step() -> None:
    """The store's folder holds what rows name, and nothing else."""
    root, versions = storage.store_dir(), AdapterVersion.objects.all()
    named = {one.digest for one in versions if one.digest}
    assert {path.name for path in kept()} == named and all(is_whole(path) for path in kept())
    waiting = {one.quarantine for one in versions if one.quarantine}
    waiting |= set(Upload.objects.filter(status="pending").values_list("quarantine", flat=True))
    assert {path.name for path in (root / "quarantine").glob("*")} == waiting
    assert list((root / "trash").glob("*")) == []


def settle_all(principal: Principal, house: Any) -> None:
    """What worker and beat make of it."""
    for version in AdapterVersion.objects.filter(state="uploaded"):
        validate_version(principal.tenant_id, version.id)
    with running(FakeReplica()) as replica:
        house.REPLICA_URLS = [replica.url]
        placement.reconcile()
    states = Counter(AdapterVersion.objects.values_list("state", flat=True))
    assert set(states) <= {"ready", "active", "retired"}, states


@pytest.mark.parametrize("kind", CASES)
def test_a_web_process_dies_at_each_step(
    kind: str, web: Web, alice: Principal, adapter_files: Path, house: Any
) -> None:
    make, again = CASES[kind]
    case = Case(make, adapter_files, frozenset(again))
    with tenant_scope(alice.tenant_id):
        order = case(alice, "whole")
        before = snapshot("whole")
        assert web.again(order) in FIRST
        after = snapshot("whole")
        assert before != after
        seen = []
        for step in count(1):
            name = f"killed{step}"
            order = case(alice, name)
            assert snapshot(name) == before
            if web.ask(order, step) != KILLED:
                assert snapshot(name) == after
                break
            seen.append(snapshot(name))
            assert seen[-1] in (before, after), f"step {step}"
            sweep()
            require_in_step()
            assert web.again(order) in case.again, f"step {step}"
            if kind not in MADE_TWICE:
                assert snapshot(name) == after, f"step {step}"
        # Before the commit, and after it.
        assert seen[0] == before and seen[-1] == after
        settle_all(alice, house)
        require_in_step()
