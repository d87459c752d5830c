"""The bench of fairness: rows that say what they should, and a chart that is one."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from inference.bench import fairness
from inference.bench.chart import Series, write_chart


def test_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "NUM_WAITING", 600)
    monkeypatch.setattr(fairness, "NUM_STEPS", 3)
    chart = tmp_path / "fairness.svg"
    rows = {row["what"]: row for row in fairness.measure_fairness(chart)}
    by_arrival, fair = rows["steady, by arrival"], rows["steady, fair"]
    assert by_arrival["requests"] == fair["requests"] == fairness.END_S
    # Two hundred requests wait in front, or a place in the batch.
    assert by_arrival["wait_s_p99"] > 10
    assert fair["wait_s_max"] < 1
    # Sixty short waits cost the two hundred less than their own.
    assert rows["flood, fair"]["wait_s_p99"] < 1.2 * rows["flood, by arrival"]["wait_s_p99"]
    measured = [row for row in rows.values() if row["table"] == "schedule"]
    assert len(measured) == 5 and all(row["cpu_ms_best"] > 0 for row in measured)
    lines = ElementTree.parse(chart).getroot().findall("{*}polyline")
    assert len(lines) == 2 and all(line.get("points") for line in lines)


def test_the_highest_point_is_at_the_top_and_the_last_at_the_right(tmp_path: Path) -> None:
    write_chart(tmp_path / "a.svg", "title", [Series("one", [(0.0, 0.0), (10.0, 4.0)])])
    (line,) = ElementTree.parse(tmp_path / "a.svg").getroot().findall("{*}polyline")
    first, last = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
    assert first[0] < last[0] == 700 and first[1] > last[1] == 56
