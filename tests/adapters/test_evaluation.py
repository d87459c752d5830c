"""A version measured on a replica over real sockets: figures, identity, deaths, limits."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from adapters import evaluation, placement, scoring
from adapters.eval_set import save_eval_set
from adapters.evaluation import begin_evaluation, dispatch_evaluations, run_evaluation
from adapters.models import AdapterVersion, Evaluation, Placement
from adapters.publish import delete_version
from tenants import events
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import AuditEvent
from tenants.scope import tenant_scope
from tests.adapters.conftest import Publish, client_of
from tests.adapters.fake_replica import FakeReplica, running
from tests.adapters.test_eval_set import CHAT, PLAIN, lines

URL = "/api/tenants/acme/adapters/support-bot/versions/1/evaluations/"
PROMPT = "Be brief."


@pytest.fixture
def replica(house: Any) -> Iterator[FakeReplica]:
    with running(FakeReplica()) as found:
        house.REPLICA_URLS = [found.url]
        yield found


@pytest.fixture
def version(scope: Principal, published: Publish, replica: FakeReplica) -> AdapterVersion:
    """Of a line of versions with an eval set: one conversation, one prompt."""
    found = published("support-bot")
    save_eval_set(scope, found.adapter, lines(CHAT, PLAIN | {"golden": True}))
    replica.scores.logprobs = {"base": -2.0, found.digest: -0.5}
    return found


def place(version: AdapterVersion) -> None:
    placement.reconcile()
    with tenant_scope(version.tenant_id):
        assert Placement.objects.filter(digest=version.digest, state="loaded").exists()


def run(row: Evaluation) -> Evaluation:
    run_evaluation(row.tenant_id, row.id)
    row.refresh_from_db()
    return row


def age(row: Evaluation, **fields: Any) -> None:
    Evaluation.objects.filter(id=row.id).update(**fields)
    row.refresh_from_db()


def long_ago() -> Any:
    return timezone.now() - timedelta(hours=1)


def test_it_works(
    client: Client, scope: Principal, version: AdapterVersion, replica: FakeReplica
) -> None:
    answer = client.post(URL, {"system_prompt": PROMPT}, content_type="application/json")
    assert answer.status_code == 202, answer.content
    queued = answer.json()
    assert (queued["status"], queued["num_steps"], queued["results"]) == ("queued", 9, None)
    row = Evaluation.objects.get()
    # No replica holds it yet: placement brings it, as it would an active one.
    assert dispatch_evaluations() == 0
    place(version)
    assert replica.loads == [version.digest]
    assert dispatch_evaluations() == 1
    run(row)
    found = client.get(f"{URL}{row.public_id}/").json()
    assert (found["status"], found["num_done"]) == ("completed", 9), found
    assert (found["digest"], found["model"]) == (version.digest, "tiny-base")
    base, prompted, adapter = found["results"]["contenders"]
    assert [one["name"] for one in (base, prompted, adapter)] == [
        "base",
        "base_with_prompt",
        "adapter",
    ]
    assert (base["loss"], prompted["loss"], adapter["loss"]) == (2.0, 2.5, 0.5)
    assert base["perplexity"] == pytest.approx(7.389, abs=1e-3)
    # "yo" and the token that ends the turn, not the newline behind it; " 4".
    assert [one["num_tokens"] for one in (base, prompted, adapter)] == [5, 5, 5]
    (golden,) = found["results"]["golden"]
    assert (golden["line"], golden["expected"]) == (2, " 4")
    assert golden["answers"]["adapter"] == f"{version.digest[:8]} goes on"
    assert set(golden["answers"]) == {"base", "base_with_prompt", "adapter"}
    assert found["results"]["usage"]["completion_tokens"] == 3 * 4
    assert client.get(URL).json()["results"] == [found]
    # Where it ran is the operator's business.
    assert Evaluation.objects.get().replica == replica.url and replica.url not in str(found)
    rows = AuditEvent.objects.filter(action__startswith="evaluation.").order_by("id")
    assert [one.action for one in rows] == ["evaluation.begun", "evaluation.completed"]
    assert rows[1].after["losses"] == {"base": 2.0, "base_with_prompt": 2.5, "adapter": 0.5}


def test_what_the_replica_is_asked(
    scope: Principal, version: AdapterVersion, replica: FakeReplica
) -> None:
    row = begin_evaluation(scope, version, PROMPT)
    place(version)
    run(row)
    for _, body, headers in replica.scores.calls:
        # A share of its own, far below a tenant's; blocks that no tenant's requests find.
        assert (headers["X-Tenant"], float(headers["X-Tenant-Weight"])) == ("evaluation", 0.05)
        assert body["cache_salt"] == f"evaluation:{scope.tenant_id}"
    prompts = [body["prompt"] for path, body, _ in replica.scores.calls if "echo" in body]
    texts = [bytes(i for i in ids if i < 256).decode() for call in prompts for ids in call]
    plain, prompted = ["user\nhi\nassistant\nyo", "2 + 2 = 4"], f"system\n{PROMPT}"
    told = [f"{prompted}\nuser\nhi\nassistant\nyo", f"{PROMPT}\n\n2 + 2 = 4"]
    assert texts == [*plain, *told, *plain]


def test_the_version_is_asked_as_it_is_served(
    scope: Principal, version: AdapterVersion, replica: FakeReplica
) -> None:
    """With its profile's system prompt, which the base is told too; a set's own turn wins."""
    AdapterVersion.objects.filter(id=version.id).update(profile={"system_prompt": "Be kind."})
    version.refresh_from_db()
    own = {"messages": [{"role": "system", "content": "Be odd."}, *CHAT["messages"]]}
    save_eval_set(scope, version.adapter, lines(CHAT | {"golden": True}, own, PLAIN))
    row = begin_evaluation(scope, version)
    place(version)
    run(row)
    assert row.results is not None
    prompts = [one["system_prompt"] for one in row.results["contenders"]]
    assert prompts == ["", "Be kind.", "Be kind."]
    asked = [body for path, body, _ in replica.scores.calls if body["model"] == version.digest]
    texts = [bytes(i for i in ids if i < 256).decode() for ids in asked[0]["prompt"]]
    turns = "user\nhi\nassistant\nyo"
    # A plain prompt is left alone, as the gateway leaves it.
    assert texts == [f"system\nBe kind.\n{turns}", f"system\nBe odd.\n{turns}", "2 + 2 = 4"]
    assert asked[1]["messages"][0] == {"role": "system", "content": "Be kind."}


def test_without_any_prompt_there_are_two(
    scope: Principal, version: AdapterVersion, replica: FakeReplica
) -> None:
    row = begin_evaluation(scope, version)
    place(version)
    run(row)
    assert row.results is not None
    assert [one["name"] for one in row.results["contenders"]] == ["base", "adapter"]


@pytest.mark.parametrize("who", ["base", "adapter"])
def test_another_digest_is_no_result(
    scope: Principal, version: AdapterVersion, replica: FakeReplica, who: str
) -> None:
    """Never the base in an adapter's place, nor the other way round."""
    asked = "base" if who == "base" else version.digest
    replica.scores.served[asked] = "0" * 64 if who == "base" else "base"
    row = begin_evaluation(scope, version)
    place(version)
    run(row)
    assert (row.status, row.error_code, row.results) == ("failed", "digest_mismatch", None)


@pytest.mark.parametrize("failure", [(503, "overloaded"), (404, "model_not_found")])
def test_what_passes_is_tried_again(
    scope: Principal, version: AdapterVersion, replica: FakeReplica, failure: tuple[int, str]
) -> None:
    replica.scores.failures = [failure] * 2
    row = begin_evaluation(scope, version)
    place(version)
    assert (run(row).status, row.attempt) == ("queued", 1)
    assert (run(row).status, row.attempt) == ("queued", 2)
    assert run(row).status == "completed"
    again = begin_evaluation(scope, version)
    replica.scores.failures = [failure] * 3
    assert [run(again).status for _ in range(3)] == ["queued", "queued", "failed"]
    # What the replica said is for the operator.
    assert again.error_code == "replica_failed" and "127.0.0.1" not in again.error


def test_a_line_at_fault_is_named(
    scope: Principal, version: AdapterVersion, replica: FakeReplica
) -> None:
    place_first = begin_evaluation(scope, version)
    place(version)
    run(place_first)
    save_eval_set(scope, version.adapter, lines(PLAIN, PLAIN | {"prompt": "x" * 600}))
    row = run(begin_evaluation(scope, version))
    assert (row.status, row.error_code) == ("failed", "too_long")
    assert row.error == "line 2: 600 tokens; the context holds 512"
    # It is over: nothing starts it again, and placement lets go of the version.
    assert dispatch_evaluations() == 0
    assert version.digest not in placement.needed_digests()


def test_a_killed_run_is_run_again_and_writes_nothing(
    scope: Principal,
    version: AdapterVersion,
    replica: FakeReplica,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = begin_evaluation(scope, version)
    place(version)
    monkeypatch.setattr(evaluation, "MAX_ATTEMPTS", 2)
    ghost = evaluation._claim(row.id)
    assert ghost is not None
    # While it beats, nobody takes its place, and the same message again does nothing.
    assert dispatch_evaluations() == 0
    assert run(row).status == "running"
    age(row, heartbeat_at=long_ago())
    dispatch_evaluations()
    row.refresh_from_db()
    assert row.status == "queued"
    assert run(row).status == "completed"
    before = Evaluation.objects.filter(id=row.id).values().get()
    # The first one was not dead: its end is not the row's.
    evaluation._beat(ghost, 3)
    evaluation._settle(ghost, "failed", error_code="late", error="late")  # type: ignore[arg-type]
    assert Evaluation.objects.filter(id=row.id).values().get() == before
    # Killed again and again it ends.
    other = begin_evaluation(scope, version)
    age(other, status="running", attempt=2, heartbeat_at=long_ago())
    dispatch_evaluations()
    other.refresh_from_db()
    assert (other.status, other.error_code) == ("failed", "interrupted")


def test_two_run_at_once_and_the_rest_waits(
    scope: Principal, version: AdapterVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [begin_evaluation(scope, version, f"prompt {i}") for i in range(4)]
    assert begin_evaluation(scope, version, "prompt 2").id == rows[2].id
    with pytest.raises(ApiError) as caught:
        begin_evaluation(scope, version, "one more")
    assert (caught.value.status, caught.value.code) == (403, "evaluation_limit_reached")
    place(version)
    assert dispatch_evaluations() == 2
    evaluation._claim(rows[0].id)
    assert dispatch_evaluations() == 1
    evaluation._claim(rows[1].id)
    assert dispatch_evaluations() == 0
    # Without a replica for long the wait ends, and says why.
    Placement.objects.all().delete()
    age(rows[3], created_at=long_ago())
    dispatch_evaluations()
    rows[3].refresh_from_db()
    assert (rows[3].status, rows[3].error_code) == ("failed", "no_replica")


def test_refusals(
    client: Client, carol: Principal, scope: Principal, version: AdapterVersion
) -> None:
    for body in ({"system_prompt": 5}, {"system_prompt": "x" * 40_000}, {"colour": 1}, []):
        answer = client.post(URL, json.dumps(body), content_type="application/json")
        assert answer.status_code == 400, body
    assert client_of(carol).post(URL).status_code == 404
    assert client.get(URL + "eval_0/").status_code == 404
    AdapterVersion.objects.filter(id=version.id).update(state="failed")
    answer = client.post(URL, {}, content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_evaluable")
    AdapterVersion.objects.filter(id=version.id).update(state="ready")
    client.delete("/api/tenants/acme/adapters/support-bot/eval-set/")
    answer = client.post(URL, {}, content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_eval_set")


def test_a_set_replaced_meanwhile_is_still_the_one_it_began_with(
    scope: Principal, version: AdapterVersion
) -> None:
    row = begin_evaluation(scope, version)
    save_eval_set(scope, version.adapter, lines(*[PLAIN] * 7))
    place(version)
    assert run(row).results is not None and row.num_examples == 2
    # Once nothing needs it, it goes; the sha256 stays.
    save_eval_set(scope, version.adapter, lines(PLAIN))
    row.refresh_from_db()
    assert row.eval_set is None and len(row.eval_set_sha256) == 64
    # A version may go in the middle of it.
    other = begin_evaluation(scope, version)
    ghost = evaluation._claim(other.id)
    assert ghost is not None
    delete_version(scope, version)
    evaluation._beat(ghost, 1)
    assert not Evaluation.objects.exists()


def test_progress_is_told(
    scope: Principal,
    version: AdapterVersion,
    replica: FakeReplica,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(events.Sending, "send", lambda one: told.append(json.loads(one.data)))
    monkeypatch.setattr(evaluation, "BEAT_S", 0.01)
    monkeypatch.setattr(scoring, "MAX_CALL_PROMPTS", 1)
    replica.scores.delay_s = 0.05
    row = begin_evaluation(scope, version)
    place(version)
    with django_capture_on_commit_callbacks(execute=True):
        run(row)
    seen = [(one["status"], one["num_done"]) for one in told if one.get("id") == row.public_id]
    assert seen[0] == ("running", 0) and seen[-1] == ("completed", 6)
    assert len(seen) > 4 and seen == sorted(seen, key=lambda pair: pair[1])
    assert {one["num_steps"] for one in told if "num_steps" in one} == {6}
    assert "evaluation.changed" in events.NOT_INVALIDATING
