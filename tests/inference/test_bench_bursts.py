"""The bench of bursts, on the tiny model."""

import argparse
from pathlib import Path

import pytest

from inference.adapter_format import digest
from inference.adapter_loader import CONFIG_NAME, WEIGHTS_NAME
from inference.bench.bursts import Burst, burst, measure_bursts
from inference.bench.dummy_adapter import NUM_DISTINCT, write_dummy_adapters
from inference.model_spec import ModelSpec


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


def test_rows_of_two_bursts(base: Path) -> None:
    options = argparse.Namespace(
        shape=None,
        model_path=str(base),
        dtype="float32",
        rank=4,
        threads=1,
        bursts=[Burst(3, 0), Burst(3, 2)],
        prompt_tokens=8,
        output_tokens=5,
    )
    rows = list(measure_bursts(options))
    steps = [row for row in rows if row["table"] == "B"]
    assert [(row["requests"], row["adapters"], row["num_steps"]) for row in steps] == [
        (3, 0, 4),
        (3, 2, 4),
    ]
    assert all(0 < row["step_ms"] <= row["step_ms_p90"] for row in steps)
    figures = {row["what"]: row["value"] for row in rows if row["table"] == "C"}
    assert figures["output, 3 requests, 2 adapters"] > 0
    ratio = figures["time to first token with LoRA / without, 3 requests, 2 adapters"]
    with_lora, without = (
        figures[f"time to first token, median, 3 requests, {n} adapters"] for n in (2, 0)
    )
    assert ratio == pytest.approx(with_lora / without, rel=0.05)
