"""Rows, sums and files of the ledger over HTTP.

Files are streamed, so they are asked for by async clients.
"""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient, Client

from tenants.billing import exports
from tenants.metering import TokenCounts, UsageEnd, open_usage, settle_usage
from tenants.prices import book_of
from tests.factories import get_acme, get_initech, make_alice
from tests.tenants.test_metering import FEBRUARY, make_price, start

URL = "/api/tenants/acme/usage/"
MONTH = {"from": "2028-02-01", "to": "2028-03-01"}


def fill(num_rows: int = 3, tenant_id: int | None = None, model: str = "bot") -> None:
    price = make_price("1", "1", "1", FEBRUARY - timedelta(microseconds=num_rows))
    for number in range(num_rows):
        name = f"{tenant_id or 'acme'}-{number}"
        at = FEBRUARY + timedelta(days=number // 2)
        one = start(
            name,
            tenant_id=tenant_id or get_acme().id,
            model=model,
            adapter="ab"[number % 2],
            prices=book_of(price),
            started_at=at,
        )
        open_usage([one])
        settle_usage([UsageEnd(one, "finished", TokenCounts(10, 4, 5))])


@pytest.mark.django_db
def test_it_works(client: Client) -> None:
    client.force_login(make_alice())
    fill()
    body = client.get(URL, MONTH).json()
    assert [row["request_id"] for row in body["results"]] == ["acme-2", "acme-1", "acme-0"]
    row = body["results"][0]
    assert (row["cost"], row["prompt_tokens"], row["key"]) == ("0.000015", 10, None)
    assert client.get(URL, MONTH | {"adapter": "b"}).json()["count"] == 1
    assert client.get(URL, MONTH | {"limit": 1}).json()["next"].endswith("offset=1&to=2028-03-01")


@pytest.mark.django_db
def test_summary(client: Client) -> None:
    client.force_login(make_alice())
    fill()
    fill(5, get_initech().id)
    body = client.get(f"{URL}summary/", MONTH).json()
    assert body["total"] == {
        "num_requests": 3,
        "prompt_tokens": 30,
        "cached_tokens": 12,
        "completion_tokens": 15,
        "cost": "0.000045",
    }
    assert [(row["day"], row["num_requests"]) for row in body["by_day"]] == [
        ("2028-02-01", 2),
        ("2028-02-02", 1),
    ]
    assert [(row["adapter"], row["cost"]) for row in body["by_adapter"]] == [
        ("a", "0.00003"),
        ("b", "0.000015"),
    ]
    rows = body["by_day_and_adapter"]
    assert [(row["day"], row["adapter"], row["num_requests"]) for row in rows] == [
        ("2028-02-01", "a", 1),
        ("2028-02-01", "b", 1),
        ("2028-02-02", "a", 1),
    ]
    assert rows[0] == body["total"] | {
        "day": "2028-02-01",
        "adapter": "a",
        "num_requests": 1,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
        "cost": "0.000015",
    }


@pytest.mark.django_db
def test_an_empty_period(client: Client) -> None:
    client.force_login(make_alice())
    body = client.get(f"{URL}summary/").json()
    assert body["total"]["cost"] == "0"
    assert body["by_day"] == body["by_adapter"] == body["by_day_and_adapter"] == []
    first = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert datetime.fromisoformat(body["start"]) == first


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query, name",
    [
        ({"from": "yesterday"}, "from"),
        ({"from": "2028-02-30"}, "from"),
        ({"to": "32"}, "to"),
        ({"from": "2028-02-02", "to": "2028-02-02"}, "to"),
        ({"from": "2028-02-02T00:00:00+01:00", "to": "2028-02-01T23:00:00Z"}, "to"),
    ],
)
@pytest.mark.parametrize("path", ["", "summary/", "export/"])
def test_bad_periods(client: Client, query: dict[str, str], name: str, path: str) -> None:
    client.force_login(make_alice())
    answer = client.get(URL + path, query | ({"format": "csv"} if path == "export/" else {}))
    assert answer.status_code == 400
    assert answer.json()["error"]["details"][0]["field"] == name


@pytest.mark.django_db
@pytest.mark.parametrize("query", [{}, {"format": "xml"}])
def test_bad_formats(client: Client, query: dict[str, str]) -> None:
    client.force_login(make_alice())
    answer = client.get(f"{URL}export/", MONTH | query)
    assert answer.status_code == 400
    assert "csv or jsonl" in answer.json()["error"]["message"]
    assert answer.headers["Content-Type"] == "application/json"


async def fetch(format_name: str, **query: str) -> tuple[Any, str]:
    client = AsyncClient()
    await client.aforce_login(await sync_to_async(make_alice)())
    answer: Any = await client.get(f"{URL}export/", MONTH | {"format": format_name} | query)
    assert answer.status_code == 200
    body = b"".join([piece async for piece in answer.streaming_content])
    await sync_to_async(connections.close_all)()
    return answer, body.decode()


@pytest.mark.django_db(transaction=True)
async def test_csv(monkeypatch: pytest.MonkeyPatch) -> None:
    """In several pieces; other tenants' and open rows are left out."""
    monkeypatch.setattr(exports, "NUM_ROWS_PER_CHUNK", 2)
    await sync_to_async(fill)(7)
    await sync_to_async(fill)(3, (await sync_to_async(get_initech)()).id)
    acme = await sync_to_async(get_acme)()
    await sync_to_async(open_usage)([start("open", tenant_id=acme.id, started_at=FEBRUARY)])
    answer, text = await fetch("csv")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.headers["Content-Disposition"] == (
        'attachment; filename="usage_acme_2028-02-01_2028-03-01.csv"'
    )
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["request_id"] for row in rows] == [f"acme-{number}" for number in range(7)]
    assert tuple(rows[0]) == exports.COLUMNS
    assert rows[0]["started_at"] == "2028-02-01T00:00:00.000000Z"
    assert sum(Decimal(row["cost"]) for row in rows) == Decimal("0.000105")


@pytest.mark.django_db(transaction=True)
async def test_json_lines() -> None:
    await sync_to_async(fill)(3)
    answer, text = await fetch("jsonl")
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["request_id"] for row in rows] == ["acme-0", "acme-1", "acme-2"]
    assert (rows[0]["cost"], rows[0]["prompt_tokens"], rows[0]["version"]) == ("0.000015", 10, None)


@pytest.mark.django_db(transaction=True)
async def test_nothing_to_export() -> None:
    assert (await fetch("jsonl"))[1] == ""


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx", "\rx"])
def test_no_cell_is_a_formula(text: str) -> None:
    record = dict.fromkeys(exports.COLUMNS) | {"model": text}
    (row,) = csv.reader(io.StringIO(exports.csv_lines([record]), newline=""))
    assert row[exports.COLUMNS.index("model")] == f"'{text}"
