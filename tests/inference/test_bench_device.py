"""The bench's rows of tables B and C, on the tiny model: what is measured is what is said."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.adapter_files import CONFIG_NAME, WEIGHTS_NAME
from inference.adapter_format import digest
from inference.bench.__main__ import main
from inference.bench.arrivals import measure_arrivals
from inference.bench.bursts import Burst, burst, measure_bursts
from inference.bench.dummy_adapter import NUM_DISTINCT, write_dummy_adapters
from inference.bench.fit import measure_fit
from inference.bench.floors import layer_gains_us
from inference.bench.loads import measure_loads
from inference.bench.off import measure_off
from inference.bench.record import Row
from inference.bench.served import measure_served
from inference.bench.stage import Stage
from inference.bench.stalls import measure_stalls
from inference.bench.traffic import closed_loop
from inference.bench.zipf import measure_zipf
from inference.model_spec import ModelSpec


@pytest.fixture
def stage(base: Path, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(
        ModelSpec.load(base),
        tmp_path,
        max_requests=8,
        prompt_tokens=8,
        output_tokens=24,
        places={"many": 8, "few": 4},
        model_path=str(base),
        config={"device": "cpu", "load_format": "auto", "num_threads": 1},
    )
    yield made
    made.close()


def by_what(rows: list[Row]) -> dict[str, Row]:
    return {row["what"]: row for row in rows if row["table"] == "C"}


def test_a_burst_is_two_numbers() -> None:
    assert burst("64/16") == Burst(64, 16)
    for text in ("64", "0/1", "a/1", "4/-1"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected REQUESTS/ADAPTERS"):
            burst(text)


def test_adapters_that_share_numbers_are_versions_of_their_own(base: Path, tmp_path: Path) -> None:
    count = 2 * NUM_DISTINCT + 1
    paths = write_dummy_adapters(tmp_path, ModelSpec.load(base), 4, count)
    found = {digest((p / CONFIG_NAME).read_bytes(), p / WEIGHTS_NAME) for p in paths}
    assert len(found) == count
    again = write_dummy_adapters(tmp_path, ModelSpec.load(base), 4, count)
    assert {digest((p / CONFIG_NAME).read_bytes(), p / WEIGHTS_NAME) for p in again} == found


def test_loads_from_each_tier(stage: Stage) -> None:
    rows = by_what(list(measure_loads(stage)))
    kinds = ("first load, PEFT's files to host", "disk cold", "page cache", "host pool")
    assert list(rows) == [f"adapter load, {kind}" for kind in kinds]
    assert all(0 < row["value"] <= row["max_ms"] for row in rows.values())
    assert rows["adapter load, host pool"]["share_from_disk"] == 0


def test_a_prompt_beside_running_requests(stage: Stage) -> None:
    rows = by_what(list(measure_arrivals(stage)))
    kinds = [f"step of 2 others with a prompt in it, {count} adapters" for count in (0, 8)]
    assert list(rows) == kinds
    for row in rows.values():
        assert 0 < row["step_ms"] <= row["value"] <= row["step_ms_max"]
        assert row["num_prompts"] >= 1 and row["prompt_tokens"] == 8


def test_rows_of_two_bursts(stage: Stage) -> None:
    rows = list(measure_bursts(stage, [Burst(3, 0), Burst(3, 2)], {(3, 2, 16): 1000.0}))
    without, with_lora = (row for row in rows if row["table"] == "B")
    assert (without["requests"], without["adapters"], without["rank"]) == (3, 0, None)
    assert (with_lora["requests"], with_lora["adapters"], with_lora["rank"]) == (3, 2, 16)
    for row in (without, with_lora):
        assert 0 < row["step_ms"] <= row["step_ms_p90"]
        assert row["num_steps"] >= stage.output_tokens - 2
    wanted = without["step_ms"] + stage.spec.num_layers
    assert with_lora["predicted_ms"] == pytest.approx(wanted, abs=2e-3)
    assert with_lora["lost_ms"] == pytest.approx(with_lora["step_ms"] - wanted, abs=2e-3)
    figures = {what: row["value"] for what, row in by_what(rows).items()}
    assert figures["output, 3 requests, 2 adapters"] > 0
    ratio = figures["time to first token with LoRA / without, 3 requests, 2 adapters"]
    first = [f"time to first token, median, 3 requests, {n} adapters" for n in (2, 0)]
    assert ratio == pytest.approx(figures[first[0]] / figures[first[1]], rel=0.01)


def test_gains_are_the_newest_of_table_a(tmp_path: Path) -> None:
    line = {"table": "A", "tokens": 64, "adapters": 16, "rank": 16}
    lines = [
        line | {"net_us": 25.0, "date": "2026-11-30T01:00"},
        line | {"net_us": 40.0, "date": "2026-11-29T01:00"},
        {"table": "flat", "tokens": 64, "adapters": 16, "rank": 16, "gain_us": 1.0},
    ]
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert layer_gains_us([path]) == {(64, 16, 16): 25.0}


def test_a_closed_loop_keeps_as_many_running(stage: Stage) -> None:
    most = 0

    def requests() -> Iterator[tuple[str | None, int]]:
        nonlocal most
        while True:
            most = max(most, traffic.num_open)
            yield None, 5

    traffic = stage.traffic("few")
    window = closed_loop(traffic, requests(), 4, 0.05, 0.3)
    assert most == 3 and traffic.num_open == 0
    num_tokens = sum(len(one.token_s) for one in window.sent)
    assert window.tokens_per_s * 0.3 == pytest.approx(num_tokens, rel=0.3)
    assert 0 < window.first_ms(50) <= window.first_ms(99)


def test_a_request_that_fails_ends_the_measurement(stage: Stage) -> None:
    traffic = stage.traffic("few")
    traffic.send()
    traffic.step()
    traffic.engine.abort(next(iter(traffic._open)))
    with pytest.raises(RuntimeError, match="did not finish: Aborted"):
        traffic.drain()


def test_off_compares_with_an_engine_without_adapters(stage: Stage) -> None:
    found = by_what(list(measure_off(stage)))
    row = found["without adapters, LoRA engine / LoRA-off, 8 requests"]
    assert 0.3 < row["value"] < 3
    assert len(stage.engine("many").state().adapters) == 8
    assert not stage.engine("few").state().adapters
    stage.adapters("few", 16, 1)
    with pytest.raises(RuntimeError, match="has adapters"):
        list(measure_off(stage))


def test_stalls_load_what_they_say(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.bench.stalls.INTERVAL_S", 0.01)
    stage.output_tokens = 100
    found = by_what(list(measure_stalls(stage)))
    for kind in ("host", "disk", "new files"):
        row = found[f"step time while adapters load from {kind} / without"]
        assert row["num_loads"] > 3
        assert row["value"] == pytest.approx(row["step_ms"] / row["step_ms_without"], rel=0.01)
    names = {info.name for info in stage.engine("few").state().adapters}
    assert not {name for name in names if name.startswith("fresh")}
    stage.engine("few").check_integrity()


def test_one_more_than_fits(stage: Stage) -> None:
    # Short, so that some begin and end within a window on a busy machine.
    stage.output_tokens = 4
    found = by_what(list(measure_fit(stage, (2, 6), 1.5)))
    for concurrency in (2, 6):
        what = f"adapters = what fits + 1, {concurrency} concurrent: time to first token p50"
        assert found[what]["fits"] == 4
        assert found[what]["num_loads"] > 0


def test_a_crowd_of_adapters_by_zipf(stage: Stage) -> None:
    stage.output_tokens = 4
    stage.adapters("many", 16, 2)
    (row,) = by_what(list(measure_zipf(stage, 40, 2.0))).values()
    assert row["what"] == "40 registered, Zipf 1.0, 8 concurrent / all resident"
    assert row["fits"] == 16
    assert row["loads_per_s"] > 0 and row["loads_per_s_resident"] == 0
    assert row["on_host"] + row["on_disk"] == 40 - 16
    assert row["distinct"] == pytest.approx(row["distinct_resident"], rel=0.1)


def test_the_server_beside_offline(stage: Stage) -> None:
    (row,) = by_what(list(measure_served(stage))).values()
    assert row["what"] == "HTTP server / offline, 8 streams"
    ratio = row["tokens_per_s"] / row["tokens_per_s_offline"]
    assert row["value"] == pytest.approx(ratio, rel=0.01)
    assert row["client_processes"] == 4


def test_lines_and_their_report(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = f"--model-path {base} --load-format auto --dtype float32 --threads 1 --requests 4"
    flags += f" --bursts 4/0 --prompt-tokens 8 --output-tokens 8 --results {tmp_path} --commit abc"
    assert main(["bursts", *flags.split()]) == 0
    (path,) = tmp_path.glob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["commit"] for row in rows} == {"abc"}
    assert all("date" in row and "cpu" in row and "gpu" in row for row in rows)
    assert main(["off", "--budget", "0", *flags.split()]) == 0
    assert len(path.read_text().splitlines()) == len(rows)
    capsys.readouterr()
    assert main(["report", str(path)]) == 0
    assert "64/64" in capsys.readouterr().out
    path.write_text("no line\n")
    assert main(["report", str(path)]) == 2
