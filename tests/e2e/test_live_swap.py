"""Adapters come and go while streams run: no stream stops, no token changes."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.e2e.house import ROOT_DIR, House, Member
from tests.e2e.test_main_job import PROMPTS, greedy

pytestmark = [pytest.mark.demo, pytest.mark.slow]
DEMO_ADAPTERS_DIR = ROOT_DIR / "demo" / "adapters"
# Long enough that an upload, a validation and an activation fit inside one stream.
LONG: dict[str, Any] = {"max_tokens": 80, "extra_body": {"ignore_eos": True}, "temperature": 0}


def other_version(source: Path, target: Path, factor: float) -> Path:
    """The same adapter with its effect scaled: other bytes, other digest, other answers."""
    shutil.copytree(source, target)
    path = target / "adapter_model.safetensors"
    tensors = {
        name: tensor * factor if "lora_B" in name else tensor
        for name, tensor in load_file(path).items()
    }
    save_file(tensors, path)
    return target


def long_stream(
    member: Member, model: str, prompt: str, started: threading.Event | None = None
) -> str:
    stream = member.client().chat.completions.create(
        model=model, messages=[{"role": "user", "content": prompt}], stream=True, **LONG
    )
    pieces = []
    for chunk in stream:
        if started is not None:
            started.set()
        pieces.append(chunk.choices[0].delta.content or "")
    return "".join(pieces)


def test_a_ninth_adapter_arrives_while_eight_stream(
    house: House, acme: Member, globex: Member, tmp_path: Path
) -> None:
    """Eight adapters stream at once; a ninth is uploaded, activated and asked in between."""
    source = DEMO_ADAPTERS_DIR / acme.adapters[0]
    models = []
    for index in range(8):
        folder = other_version(source, tmp_path / f"v{index}", 0.8 + 0.05 * index)
        version = acme.upload(f"swap-{index}", folder)
        acme.activate(f"swap-{index}", version["number"])
        models.append(f"swap-{index}")
    with ThreadPoolExecutor(8) as pool:
        calm = list(pool.map(lambda model: long_stream(acme, model, PROMPTS[0]), models))
    assert len(set(calm)) > 1

    started = [threading.Event() for _ in models]
    with ThreadPoolExecutor(8) as pool:
        streams = [
            pool.submit(long_stream, acme, model, PROMPTS[0], event)
            for model, event in zip(models, started, strict=True)
        ]
        assert all(event.wait(60) for event in started)
        ninth = other_version(source, tmp_path / "ninth", 1.3)
        version = globex.upload("ninth", ninth)
        globex.activate("ninth", version["number"])
        assert greedy(globex, "ninth", PROMPTS[0], max_tokens=4)
        assert any(not stream.done() for stream in streams), "the streams ended before the upload"
        assert [stream.result() for stream in streams] == calm


@pytest.mark.case("C63")
def test_activating_v2_leaves_the_running_v1_alone(acme: Member, tmp_path: Path) -> None:
    """v1 finishes as v1, the next request is v2; neither reads the other's cached prefix."""
    source = DEMO_ADAPTERS_DIR / acme.adapters[0]
    first = acme.upload("versioned", other_version(source, tmp_path / "one", 1.0))
    acme.activate("versioned", first["number"])
    as_v1 = long_stream(acme, "versioned", PROMPTS[0])
    second = acme.upload("versioned", other_version(source, tmp_path / "two", 0.4))
    assert second["digest"] != first["digest"]

    started = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(long_stream, acme, "versioned", PROMPTS[0], started)
        assert started.wait(60)
        acme.activate("versioned", second["number"])
        answer = acme.client().chat.completions.create(
            model="versioned", messages=[{"role": "user", "content": PROMPTS[0]}], max_tokens=2
        )
        assert not running.done(), "v1 ended before v2 was asked"
        assert answer.system_fingerprint == second["digest"]
        assert running.result() == as_v1

    as_v2 = long_stream(acme, "versioned", PROMPTS[0])
    assert as_v2 != as_v1
    acme.activate("versioned", first["number"])
    assert long_stream(acme, "versioned", PROMPTS[0]) == as_v1
    acme.activate("versioned", second["number"])
    assert long_stream(acme, "versioned", PROMPTS[0]) == as_v2
