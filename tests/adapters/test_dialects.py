"""Placement on vLLM and SGLang, through the same rounds as on our own engine."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from adapters.activation import begin_activation
from adapters.dialects import DIALECTS, SGLANG, VLLM, split_url
from adapters.dialects.dialect import Ability, Answer, ReplicaError
from adapters.models import AdapterVersion, Placement, PlacementState, Replica
from adapters.placement import reconcile
from adapters.replica_http import fetch_state, load, unload
from adapters.storage import blob_dir
from tenants.auth import Principal
from tenants.scope import tenant_scope
from tests.adapters.conftest import Publish
from tests.adapters.fake_peers import BASE, FakePeer, FakeSglang, FakeVllm
from tests.adapters.fake_replica import running

pytestmark = pytest.mark.django_db
PEERS = {"vllm": FakeVllm, "sglang": FakeSglang}


@pytest.fixture(params=PEERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def peer(name: str, house: Any) -> Iterator[FakePeer]:
    with running(PEERS[name]()) as peer:
        house.REPLICA_URLS = [f"{name}+{peer.url}"]
        yield peer


def activate(alice: Principal, version: AdapterVersion) -> AdapterVersion:
    with tenant_scope(alice.tenant_id):
        begin_activation(alice, version)
    reconcile()
    with tenant_scope(alice.tenant_id):
        version.refresh_from_db()
    return version


def test_it_works(alice: Principal, published: Publish, peer: FakePeer, name: str) -> None:
    version = activate(alice, published("support-bot"))
    assert version.state == "active"
    assert peer.adapters == {version.digest: str(blob_dir(version.digest))}
    row = Replica.objects.get()
    assert (row.dialect, row.url, row.healthy) == (name, peer.url, True)
    assert (row.state["model"], row.state["max_model_len"]) == (BASE, 512)
    reconcile()
    assert len(peer.loads) == 1


def test_a_restarted_peer_gets_its_adapters_back(
    alice: Principal, published: Publish, peer: FakePeer
) -> None:
    version = activate(alice, published("support-bot"))
    peer.adapters.clear()
    reconcile()
    assert list(peer.adapters) == [version.digest]


def test_what_nothing_needs_is_unloaded(
    alice: Principal, published: Publish, peer: FakePeer
) -> None:
    version = activate(alice, published("support-bot"))
    with tenant_scope(alice.tenant_id):
        AdapterVersion.objects.update(state="ready", superseded_at=None)
    reconcile()
    past = timezone.now() - timedelta(minutes=1)
    Placement.objects.filter(state=PlacementState.ORPHANED).update(orphaned_at=past)
    reconcile()
    assert version.digest not in peer.adapters


def test_our_name_over_another_folder_is_not_taken_for_ours(
    alice: Principal, published: Publish, peer: FakePeer, name: str
) -> None:
    version = published("support-bot")
    peer.adapters[version.digest] = "/somewhere/else"
    assert [one["digest"] for one in fetch_state(DIALECTS[name], peer.url)["adapters"]] == [""]
    version = activate(alice, version)
    if name == "vllm":
        # It can load in place, so the name becomes ours.
        assert version.state == "active"
        assert peer.adapters[version.digest] == str(blob_dir(version.digest))
    else:
        assert version.state == "failed" and "is another folder there" in version.error


def test_loading_and_unloading_twice_is_once(peer: FakePeer, name: str, tmp_path: Path) -> None:
    digest = "a" * 64
    folder = tmp_path / digest
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 8}')
    for _ in range(2):
        load(DIALECTS[name], peer.url, digest, str(folder))
    assert list(peer.adapters) == [digest]
    for _ in range(2):
        unload(DIALECTS[name], peer.url, digest)
    assert peer.adapters == {}


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (FakeVllm(allows_updates=False), "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        (FakeVllm(max_lora_rank=4), "LoRA rank 8 is greater than max_lora_rank 4"),
        (FakeSglang(enable_lora=False), "Please set `--enable-lora`"),
        (FakeSglang(max_loaded_loras=0), "raise --max-loaded-loras"),
    ],
)
def test_what_a_peer_refuses_is_told_in_its_words(
    broken: FakePeer, said: str, tmp_path: Path
) -> None:
    dialect = VLLM if isinstance(broken, FakeVllm) else SGLANG
    (tmp_path / "adapter_config.json").write_text('{"r": 8}')
    with running(broken), pytest.raises(ReplicaError, match=said):
        load(dialect, broken.url, "a" * 64, str(tmp_path))


def test_a_dead_engine_behind_a_living_front_is_not_healthy(peer: FakePeer) -> None:
    peer.is_dead = True
    reconcile()
    row = Replica.objects.get()
    assert not row.healthy and "/health answered status 503" in row.error


def test_another_engine_at_the_same_address_begins_anew(peer: FakePeer, house: Any) -> None:
    reconcile()
    before = Replica.objects.get().id
    house.REPLICA_URLS = [peer.url]
    reconcile()
    row = Replica.objects.get()
    assert row.id != before and row.dialect == "grafthouse" and not row.healthy


def test_a_url_says_its_dialect() -> None:
    assert split_url("vllm+https://a:1/x/") == (VLLM, "https://a:1/x")
    assert split_url("http://a:1")[0].abilities == frozenset(Ability)
    with pytest.raises(ValueError, match="expected the dialect grafthouse, vllm, sglang, got tgi"):
        split_url("tgi+http://a:1")


def test_what_a_dialect_cannot_is_known_by_name() -> None:
    assert VLLM.abilities == {Ability.TOKENIZE}
    assert SGLANG.abilities == set()


@pytest.mark.parametrize("raw", [b"", b"<html>", b"[]", b"null", b'{"data": 1}', b'{"data": []}'])
def test_an_answer_that_is_no_list_of_models_is_an_error(raw: bytes) -> None:
    for dialect in (VLLM, SGLANG):
        with pytest.raises(ReplicaError, match="/v1/models"):
            dialect.read_state([Answer(200, b""), Answer(200, raw)])
        with pytest.raises(ReplicaError):
            dialect.read_load(Answer(500, raw), "a" * 64, "/x")
        with pytest.raises(ReplicaError):
            dialect.read_unload(Answer(500, raw))
