"""/v1/usage by the official client: the ledger's sums, the asker's alone."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import openai
import pytest
from django.utils import timezone
from openai.types.admin.organization import UsageCompletionsResponse

from tenants.audit import system
from tenants.keys import create_key
from tenants.models import UsageRecord
from tenants.scope import tenant_scope
from tests.gateway.conftest import Customer, Stack
from tests.gateway.fake_replica import CACHED_TOKENS, PROMPT_TOKENS
from tests.gateway.live import BASE_MODEL
from tests.gateway.sdk.shapes import strict

MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]
EVERYTHING = ("inference", "usage")
DAY_S = 86_400


def midnight() -> int:
    return int(timezone.now().replace(hour=0, minute=0, second=0, microsecond=0).timestamp())


def pages(customer: Customer) -> Any:
    """The client's own method: it takes an admin's key, which here is any with the scope."""
    client = customer.client(admin_api_key=customer.api_key)
    return client.admin.organization.usage.with_raw_response.completions


def put_back(customer: Customer, days: int) -> None:
    with tenant_scope(customer.tenant.id):
        at = timezone.now() - timedelta(days=days)
        UsageRecord.objects.update(started_at=at)


@pytest.fixture
def customer(stack: Stack) -> Customer:
    customer = stack.make_customer(scopes=EVERYTHING)
    stack.activate(customer, "support-bot")
    return customer


def ask(customer: Customer, *models: str) -> None:
    for model in models:
        customer.client().chat.completions.create(model=model, messages=MESSAGES)


def test_it_works(customer: Customer, globex: Customer) -> None:
    ask(globex, BASE_MODEL)
    ask(customer, BASE_MODEL)
    customer.usage(1)
    put_back(customer, days=1)
    ask(customer, "support-bot", BASE_MODEL, "support-bot@1")
    customer.usage(4)
    start = midnight() - 2 * DAY_S
    raw = pages(customer)(start_time=start, group_by=["model"])
    page = strict(UsageCompletionsResponse, raw.content)
    assert [one.start_time for one in page.data] == [start, start + DAY_S, start + 2 * DAY_S]
    assert [one.end_time - one.start_time for one in page.data] == [DAY_S] * 3
    found = [[sums(one) for one in bucket.results] for bucket in page.data]
    once = (PROMPT_TOKENS, CACHED_TOKENS, 5, 1)
    twice = tuple(2 * number for number in once)
    assert found == [[], [(BASE_MODEL, *once)], [(BASE_MODEL, *once), ("support-bot", *twice)]]
    assert (page.has_more, page.next_page) == (False, None)
    together = strict(UsageCompletionsResponse, pages(customer)(start_time=start).content)
    assert [sums(one) for one in together.data[2].results] == [
        (None, *(3 * number for number in once))
    ]


def sums(one: Any) -> tuple[Any, ...]:
    counts = one.input_tokens, one.input_cached_tokens, one.output_tokens
    return one.model, *counts, one.num_model_requests


def test_pages(customer: Customer) -> None:
    """Cut in the middle of days, the buckets are the period, no moment twice."""
    start, end = midnight() - 9 * DAY_S - 3600, midnight() + 7200
    seen: list[Any] = []
    more: dict[str, str] = {}
    while True:
        page = pages(customer)(start_time=start, end_time=end, limit=4, **more).parse()
        seen += page.data
        if not page.has_more:
            break
        more = {"page": page.next_page}
    times = [(one.start_time, one.end_time) for one in seen]
    assert times[0][0] == start and times[-1][1] == end and len(times) == 11
    assert all(one[1] == other[0] for one, other in itertools.pairwise(times))


def test_a_cut_day_counts_what_lies_in_it(customer: Customer) -> None:
    ask(customer, BASE_MODEL)
    [row] = customer.usage(1)
    at = int(row.started_at.timestamp())
    for start, end, wanted in ((at - 60, at, 0), (at, at + 1, 1), (at + 1, at + 60, 0)):
        page = pages(customer)(start_time=start, end_time=end).parse()
        counts = [one.num_model_requests for bucket in page.data for one in bucket.results]
        assert sum(counts) == wanted


def test_the_short_path_has_this_month(customer: Customer) -> None:
    found: Any = customer.client().get("/usage", cast_to=object)
    assert found["object"] == "page"
    first = datetime.fromtimestamp(found["data"][0]["start_time"], UTC)
    now = timezone.now()
    assert (first.day, first.hour, first.month) == (1, 0, now.month)
    assert len(found["data"]) == min(now.day, 7)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"start_time": "yesterday"}, "start_time"),
        ({"start_time": -1}, "start_time"),
        ({"start_time": "9" * 5000}, "start_time"),
        ({"start_time": "٣"}, "start_time"),
        ({"end_time": 5}, "end_time"),
        ({"bucket_width": "1h"}, "bucket_width"),
        ({"group_by": "user_id"}, "group_by"),
        ({"group_by": ["model", "batch"]}, "group_by"),
        ({"limit": 32}, "limit"),
        ({"limit": 0}, "limit"),
        ({"page": "x"}, "page"),
        ({"models": [BASE_MODEL]}, "models"),
        ({"tenant": "acme"}, "tenant"),
    ],
)
def test_bad_queries(customer: Customer, query: dict[str, Any], param: str) -> None:
    """What would narrow or split the sums is not ignored."""
    with pytest.raises(openai.BadRequestError) as caught:
        customer.client().get("/usage", cast_to=object, options={"params": query})
    assert caught.value.param == param and len(caught.value.message) < 300


def test_the_scope(customer: Customer) -> None:
    without = create_key(system(customer.tenant.id), "test", ["inference"])
    with pytest.raises(openai.PermissionDeniedError):
        customer.web.client(without.raw).get("/usage", cast_to=object)
    with pytest.raises(openai.AuthenticationError):
        customer.web.client("gh-nope").get("/usage", cast_to=object)
