"""What replicas are asked of dead processes' requests, and which answers count."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from adapters.engine_usage import attempts_of
from adapters.models import Replica
from tenants.metering import TokenCounts
from tenants.orphans import Attempt
from tests.adapters.fake_replica import running
from tests.services import free_port

pytestmark = pytest.mark.django_db


def record(**fields: Any) -> dict[str, Any]:
    return {
        "request_id": "r1",
        "attempt": 1,
        "digest": None,
        "outcome": "aborted",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
    } | fields


@dataclass
class Knower:
    """A replica that answers one question."""

    answer: Any
    status: int = 200
    port: int = field(default_factory=free_port)
    asked: list[Any] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def usage(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        return web.json_response(self.answer, status=self.status)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/usage", self.usage)]


def test_it_works(house: Any) -> None:
    """All replicas are asked, whatever engine the house names first; others' engines are not."""
    digest = "d" * 64
    one = Knower({"records": [record(digest=digest, outcome="running", attempt=2)]})
    two = Knower({"records": [record()]})
    other = Knower({"records": [record()]})
    house.REPLICA_URLS = [one.url]
    Replica.objects.create(url=two.url)
    Replica.objects.create(url=other.url, dialect="vllm")
    Replica.objects.create(url=f"http://127.0.0.1:{free_port()}")
    with running(one), running(two), running(other):
        found = attempts_of(["r1", "r2"])
    counts = TokenCounts(10, 4, 5)
    assert sorted(found, key=lambda attempt: attempt.number) == [
        Attempt("r1", 1, two.url, "", False, counts),
        Attempt("r1", 2, one.url, digest, True, counts),
    ]
    assert one.asked == two.asked == [{"request_ids": ["r1", "r2"]}]
    assert other.asked == []


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"error": {"message": "Unknown path", "code": "unknown_path"}}, 404),
        ({}, 200),
        ({"records": None}, 200),
        ({"records": ["r1"]}, 200),
        ({"records": [{"request_id": "r1"}]}, 200),
        ({"records": [record(completion_tokens=2**31)]}, 200),
        ({"records": [record(completion_tokens=-1)]}, 200),
        ({"records": [record(completion_tokens=True)]}, 200),
        ({"records": [record(prompt_tokens=1.5)]}, 200),
        ({"records": [record(cached_tokens=11)]}, 200),
        ({"records": [record(attempt="1")]}, 200),
        ([], 200),
    ],
)
def test_an_answer_that_is_none(
    house: Any, answer: Any, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It says nothing, and takes no other's word away."""
    broken, good = Knower(answer, status), Knower({"records": [record()]})
    house.REPLICA_URLS = [broken.url, good.url]
    with running(broken), running(good):
        (found,) = attempts_of(["r1"])
    assert found.replica == good.url
    (line,) = [one.message for one in caplog.records if one.levelname == "WARNING"]
    assert broken.url in line
