"""The tables that result lines make, and what is said of wrong arguments."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.bench import report
from kernels.bench.__main__ import main
from kernels.bench.arguments import OPS
from kernels.bench.cases import POINTS, Point
from kernels.bench.grid import key, point_key
from kernels.bench.measure import best_peer, median_difference
from kernels.bench.timing import spread
from tests.kernels.conftest import HAS_CUDA

RESULTS_DIR = Path(report.__file__).parent / "results"


def line_a(gain: float, peer: float | None = 97.0) -> dict[str, object]:
    point = {"tokens": 64, "adapters": 64, "rank": 16, "gain_us": gain, "peer_us": peer}
    return {"op": "lora", "table": "A", "base_us": 127.0, "floor_us": 39.8} | point


def line_grid(projection: str, gain: float, peer: float) -> dict[str, object]:
    place = {"projection": projection, "tokens": 8, "adapters": 4, "rank": 16}
    figures = {"gain_us": gain, "net_us": gain / 2, "alone_us": 2 * gain}
    figures |= {"peer_us": peer, "peer_alone_us": 2 * peer}
    return {"op": "lora", "table": "grid", "peer": "sgl_v2"} | place | figures


def write(path: Path, *lines: dict[str, object]) -> list[str]:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [str(path)]


@pytest.mark.parametrize(("gain", "verdict"), [(51, "goal"), (60, "must"), (65, "MISSED")])
def test_table_a_names_what_was_reached(gain: float, verdict: str) -> None:
    *_, row = report.table_a([line_a(gain)])
    assert row.endswith(verdict)
    assert f"{gain / 97:.2f}" in row


def test_table_a_gives_the_gain_of_each_form() -> None:
    figures = {"forms": {"beside": 70.04, "folded": 51}, "net_us": 52, "fp8": {"gain_us": 31}}
    *_, row = report.table_a([line_a(51) | figures])
    assert row.endswith("goal, beside 70.0, folded 51.0, over our own base 52.0, fp8 31.0")


def test_every_point_of_table_a_has_its_bars() -> None:
    assert set(report.BARS) == set(POINTS)


def test_a_line_without_peers_has_no_share() -> None:
    *_, row = report.table_a([line_a(60, None)])
    assert "nan" in row and row.endswith("must")


def test_the_later_of_two_lines_counts(tmp_path: Path) -> None:
    lines = report.read(write(tmp_path / "lines.jsonl", line_a(90), line_a(60)))
    assert [line["gain_us"] for line in lines] == [60]


def test_grid_means_and_exceptions() -> None:
    lines = [line_grid("qkv", 2, 8), line_grid("down", 4, 2), line_grid("o", 2, 4)]
    folded, rest = "\n".join(report.grid(lines)).split("Grid, gain over cuBLAS")
    assert "geometric mean 3.17" in folded and "slower than the best peer: 0" in folded
    gains = rest.split("LoRA alone")[0]
    assert "3 points" in gains and "geometric mean 1.59" in gains
    assert "qkv: 4.00, down: 0.50, o: 2.00" in gains
    assert "slower than the best peer: 1\n    down rank 16 8/4 (sgl_v2): 4.00 against 2.00" in gains


def test_a_gain_below_the_noise_is_no_miracle() -> None:
    rows = "\n".join(report.grid([line_grid("qkv", -0.05, 0.2)]))
    assert "geometric mean 2.00" in rows


@pytest.mark.parametrize("path", sorted(RESULTS_DIR.glob("*.jsonl")), ids=lambda path: path.name)
def test_the_kept_results_can_be_read(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(path)]) == 0
    assert "Table A" in capsys.readouterr().out


def test_a_reader_that_has_enough_ends_it_quietly(tmp_path: Path) -> None:
    """More lines than a pipe holds, and a reader who takes one, as head -1."""
    lines = [line_a(60) | {"tokens": i} for i in range(3000)]
    command = [sys.executable, "-m", "kernels.bench", "report", *write(tmp_path / "a", *lines)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("Table A")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_grid_points_are_found_again() -> None:
    assert key(line_grid("qkv", 1, 2)) == point_key(Point("qkv", 16, 8, 4))
    assert key(line_a(1)) is None


def test_best_peer_is_not_ours() -> None:
    assert best_peer({"ours": 1.0, "vllm0.33": 9.0, "sgl_v2": 3.0}) == ("sgl_v2", 3.0)
    assert best_peer({"ours": 1.0}) is None


def test_a_difference_is_taken_within_a_round() -> None:
    assert median_difference([11, 21, 32], [10, 20, 30]) == 1
    assert spread([10, 10, 10, 10]) == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["bogus"], f"expected one of {', '.join(OPS)}, got bogus"),
        (["lora", "--points", "4/8"], "expected no more adapters than tokens, got 4/8"),
        (["grid", "--ranks", "7"], "expected some of (8, 16, 32, 64), got 7"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["lora", "--peers", "nowhere"], "expected a folder with bench/kernels_peer.py"),
        (["report", "nowhere.jsonl"], "No such file or directory: 'nowhere.jsonl'"),
    ],
)
def test_a_wrong_argument_is_one_line(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        sys.exit(main(arguments))
    told = capsys.readouterr()
    assert told.out == ""
    assert expected in told.err and told.err.count("\n") == 1


@pytest.mark.skipif(HAS_CUDA, reason="with CUDA it runs")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lora"]) == 2
    assert capsys.readouterr().err == "kernels.bench: needs a CUDA device\n"
