"""The bench runs against real processes and writes rows that its report reads."""

import asyncio
from pathlib import Path

import pytest

from gateway.bench import litellm
from gateway.bench.__main__ import main
from gateway.bench.bars import BARS
from gateway.bench.dummy import STREAM_HEAD, tokens, write_frames
from gateway.bench.load import Job, Target, play
from gateway.bench.measure import percentile
from gateway.bench.report import read, report

FIELDS = {"table", "what", "ours", "litellm", "ratio", "direct", "unit"} | {
    *("cpu", "load", "commit", "date", "awake")
}


def test_a_short_run_writes_every_row(tmp_path: Path) -> None:
    effort = ["--seconds", "0.3", "--requests", "20", "--streams", "3", "--held", "5"]
    where = ["--results", str(tmp_path / "results"), "--scratch", str(tmp_path / "scratch")]
    assert main([*effort, *where, "--commit", "abc", "--no-litellm"]) == 0
    rows = read((tmp_path / "results").glob("*.jsonl"))
    assert [set(row) for row in rows] == [FIELDS] * len(rows)
    found = {row["what"]: row for row in rows}
    assert len(found) == len(rows) == 14
    assert {(row["table"], row["commit"], row["litellm"]) for row in rows} == {("E", "abc", None)}
    # Whatever the machine: a request through us passes the upstream too, and nothing is lost.
    assert found["added latency p50, 1 at once"]["ours"] > 0
    assert found["requests/s, 64 at once"]["ours"] > 0
    assert found["5 open streams: open at once"]["ours"] == 5
    assert found["5 open streams: dropped"]["ours"] == 0


def test_the_report_says_what_is_met_missed_and_not_measured() -> None:
    bar = next(bar for bar in BARS if bar.field == "ratio" and bar.is_floor)
    row = {"what": bar.key, "unit": "1/s", "ours": 800.0, "litellm": 100.0, "ratio": 8.0}
    text = "\n".join(report([row]))
    assert "ratio ≥ 8: met" in text and "800" in text
    text = "\n".join(report([row | {"ratio": 7.9}]))
    assert "ratio ≥ 8: MISSED" in text
    text = "\n".join(report([row, row | {"ratio": 7.9, "awake": True}]))
    assert "ratio ≥ 8: met" in text and "awake" in text and "ratio ≥ 8: MISSED" in text
    text = "\n".join(report([row | {"litellm": None, "ratio": None}]))
    assert "ratio ≥ 8: not measured" in text
    assert text.count("not measured") == len({bar.key for bar in BARS})


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert (percentile(values, 50), percentile(values, 99)) == (51.0, 100.0)
    assert percentile([3.0], 99) == 3.0


async def test_a_stream_that_breaks_off_counts_as_failed() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAM_HEAD)
        write_frames(writer, [tokens("bench", 1, 1)])
        writer.close()

    async with await asyncio.start_server(break_off, "127.0.0.1", 0) as server:
        target = Target("direct", server.sockets[0].getsockname()[1], "bench")
        seen = await play(Job(target, 2, num_tokens=3, duration_s=5, is_stream=True))
    assert (seen.num_failed, seen.max_open > 0, seen.num_open) == (2, True, 0)
    assert len(seen.first_s) == len(seen.frames_s) == 2


def test_without_the_registry_the_bench_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip as it is where nothing can be reached: it fails, and its last line is the reason."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(litellm.CannotInstall, match="litellm"):
        litellm.install(tmp_path / "environment")
