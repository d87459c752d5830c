"""A gate: what has not been measured, or lost more, does not become active."""

from typing import Any

import pytest
from django.test import Client

from adapters import canary
from adapters.activation import begin_activation, finish_activation
from adapters.eval_set import save_eval_set
from adapters.evaluation import begin_evaluation
from adapters.models import AdapterVersion
from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.models import AuditEvent
from tests.adapters.conftest import Publish, client_of
from tests.adapters.fake_replica import FakeReplica
from tests.adapters.test_eval_set import CHAT, PLAIN, lines
from tests.adapters.test_evaluation import PROMPT, place, replica, run, version

__all__ = ["replica", "version"]
URL = "/api/tenants/acme/adapters/support-bot/"
ACTIVATE = URL + "versions/1/activate/"


def put(client: Client, gate: object) -> Any:
    return client.put(URL + "gate/", {"gate": gate}, content_type="application/json")


def refusal(client: Client, url: str = ACTIVATE) -> dict[str, Any]:
    answer = client.post(url)
    assert answer.status_code == 409, answer.content
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == "gate_refused"
    return error


def test_it_works(
    client: Client, scope: Principal, version: AdapterVersion, replica: FakeReplica
) -> None:
    assert client.get(URL + "gate/").json() == {"gate": "off"}
    assert put(client, "base").json() == {"gate": "base"}
    assert "support-bot@1 has not been evaluated beside the base" in refusal(client)["message"]
    replica.scores.logprobs = {"base": -2.0, version.digest: -2.25}
    row = begin_evaluation(scope, version, PROMPT)
    place(version)
    run(row)
    error = refusal(client)
    assert "worse than the base: its loss is 2.250, the other's 2.000" in error["message"]
    losses = {one["name"]: one["loss"] for one in error["details"]}
    assert losses == {"base": 2.0, "base_with_prompt": 2.5, "adapter": 2.25}
    # Told in words the base is worse than the version: that gate is open.
    put(client, "base_with_prompt")
    assert client.post(ACTIVATE).status_code == 202
    rows = AuditEvent.objects.filter(action="adapter.gate_changed").order_by("id")
    assert [(one.before, one.after) for one in rows] == [
        ({"gate": "off"}, {"gate": "base"}),
        ({"gate": "base"}, {"gate": "base_with_prompt"}),
    ]


def test_what_counts_is_the_latest_on_the_set_of_now(
    client: Client, scope: Principal, version: AdapterVersion, replica: FakeReplica
) -> None:
    put(client, "base")
    place_with = begin_evaluation(scope, version)
    place(version)
    run(place_with)
    save_eval_set(scope, version.adapter, lines(PLAIN, CHAT))
    assert "has not been evaluated" in refusal(client)["message"]
    # As good is no worse.
    replica.scores.logprobs = {"base": -2.0, version.digest: -2.0}
    run(begin_evaluation(scope, version))
    put(client, "base_with_prompt")
    # There was no prompt to be measured beside.
    assert "beside the base with a system prompt" in refusal(client)["message"]
    put(client, "base")
    assert client.post(ACTIVATE).status_code == 202


def test_a_canary_is_barred_too_and_going_back_never(
    client: Client, scope: Principal, published: Publish, version: AdapterVersion
) -> None:
    begin_activation(scope, version)
    assert finish_activation(version)
    second = published("support-bot", seed=2)
    put(client, "base")
    with pytest.raises(ApiError) as caught:
        canary.set_canary(scope, second, 10)
    assert caught.value.code == "gate_refused"
    refusal(client, URL + "versions/2/activate/")
    put(client, "off")
    begin_activation(scope, second)
    assert finish_activation(second)
    put(client, "base")
    assert client.post(ACTIVATE).status_code == 202


@pytest.mark.parametrize("body", [{}, {"gate": "open"}, {"gate": None}, {"gate": "off", "x": 1}])
def test_refusals(client: Client, version: AdapterVersion, body: dict[str, Any]) -> None:
    answer = client.put(URL + "gate/", body, content_type="application/json")
    assert answer.status_code == 400


def test_strangers(carol: Principal, version: AdapterVersion) -> None:
    assert put(client_of(carol), "base").status_code == 404
