"""Verdicts: the newest line of each bar counts, and a missed one says by how much."""

from pathlib import Path

import pytest

from inference.bench.bars import BARS, key_of, value_of
from inference.bench.report import read, report


def verdicts(rows: list[dict[str, object]]) -> dict[str, str]:
    lines = [line for line in report(rows) if line.startswith("  ") and line[2:3].strip()]
    return {line[2:72].rstrip(): line[72:].strip() for line in lines}


def test_each_bar_has_a_line() -> None:
    found = verdicts([])
    assert found.keys() == {bar.key for bar in BARS}
    assert all(line.endswith("not measured") for line in found.values())


def test_steps_rates_and_ratios() -> None:
    step = {"table": "B", "requests": 64, "adapters": 64, "step_ms": 6.9, "floor_ms": 5.3}
    rows: list[dict[str, object]] = [
        step,
        step | {"adapters": 16, "step_ms": 6.5, "predicted_ms": 6.0, "lost_ms": 0.5},
        step | {"adapters": 1, "step_ms": 9.9},
        step | {"adapters": 1, "step_ms": 13.4},
        {"table": "C", "what": "output, 64 requests, 64 adapters", "value": 7700.0},
        {"table": "C", "what": "HTTP server / offline, 256 streams", "value": 0.76},
        {"table": "D", "what": "8 requests, 8 adapters", "ratio": 3.2},
        {"table": "setup", "what": "engine start", "value": 9.0},
    ]
    found = verdicts(rows)
    assert found["64/64"].endswith("goal  (floor 5.3)")
    assert found["64/16"].endswith("must  (floor 5.3, predicted 6, lost 0.5)")
    assert "MISSED by 100.0 %" in found["64/1"]
    assert found["output, 64 requests, 64 adapters"].startswith("7,700")
    assert found["output, 64 requests, 64 adapters"].endswith("goal")
    assert found["HTTP server / offline, 256 streams"].endswith("MISSED by 20.0 %")
    assert found["8 requests, 8 adapters"].endswith("goal")


def test_a_goal_is_at_least_a_must() -> None:
    for bar in BARS:
        assert bar.meets(bar.goal, bar.must), bar


def test_keys_and_values() -> None:
    row = {"table": "D", "what": "x", "ratio": 2}
    assert (key_of(row), value_of(row)) == ("x", 2.0)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text('{"table": "B"}\n[1]\n')
    with pytest.raises(ValueError, match=r"lines:2: expected a JSON object"):
        read([path])
