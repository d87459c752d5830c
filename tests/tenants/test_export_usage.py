"""The operator's files of a month: each tenant's own rows, whole, as the API exports them."""

import csv
import io
import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tenants.billing import exports
from tenants.metering import open_usage
from tests.factories import get_acme, get_initech
from tests.tenants.api.test_usage import fill
from tests.tenants.test_metering import FEBRUARY, start

pytestmark = pytest.mark.django_db


def run(folder: Path, month: str = "2028-02", *options: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("export_usage", month, str(folder), *options, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "NUM_ROWS_PER_CHUNK", 2)
    fill(7)
    fill(3, get_initech().id)
    open_usage([start("open", started_at=FEBRUARY)])
    said, warned = run(tmp_path / "bills")
    assert f"{tmp_path}/bills/acme-2028-02.csv: 7 requests, 0.000105" in said
    assert f"{tmp_path}/bills/initech-2028-02.csv: 3 requests, 0.000045" in said
    assert "acme: 1 requests still run" in warned
    assert "initech: the month is not over" in warned
    text = (tmp_path / "bills" / "acme-2028-02.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["request_id"] for row in rows] == [f"acme-{number}" for number in range(7)]


def test_json_lines(tmp_path: Path) -> None:
    fill(3)
    run(tmp_path, "2028-02", "--format", "jsonl")
    lines = (tmp_path / "acme-2028-02.jsonl").read_text().splitlines()
    assert [json.loads(line)["cost"] for line in lines] == ["0.000015"] * 3


def test_a_tenant_that_used_nothing_has_a_file_too(tmp_path: Path) -> None:
    get_acme()
    assert "0 requests, 0\n" in run(tmp_path, "2025-01")[0]
    assert (tmp_path / "acme-2025-01.csv").read_text().startswith("request_id,")


@pytest.mark.parametrize("month", ["2028", "2028-13", "February"])
def test_what_is_no_month(tmp_path: Path, month: str) -> None:
    with pytest.raises(CommandError, match="month: expected one as 2026-11, got"):
        run(tmp_path, month)
