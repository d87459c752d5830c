"""The child process: what it finds in real files, and what it cannot be made to do."""

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from adapters.validation.check import CheckRequest
from adapters.validation.child import ValidationCrashed, run_child
from adapters.validation.limits import ChildLimits
from adapters.validation.values import CHUNK_BYTES, scan
from inference.adapter_format import digest, read_header
from tests.tiny import make_adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def verdict_of(folder: Path, base: Path, **changes: Any) -> dict[str, Any]:
    request = {
        "folder": str(folder),
        "base_model_path": str(base),
        "base_model_name": "tiny",
        "max_rank": 64,
        "max_bytes": 1 << 26,
    } | changes
    return run_child(CheckRequest(**request), ChildLimits(), on_tick=lambda _: None)


def codes(verdict: dict[str, Any]) -> set[str]:
    return {problem["code"] for problem in verdict["problems"]}


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    return make_adapter(tmp_path / "a", base, targets=("q_proj", "v_proj"))


def edit(folder: Path, change: Any) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def set_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(json.dumps(config))


def test_it_works(adapter: Path, base: Path) -> None:
    verdict = verdict_of(adapter, base)
    assert verdict["problems"] == [] and verdict["warnings"] == []
    assert verdict["digest"] == digest((adapter / CONFIG).read_bytes(), adapter / WEIGHTS)
    assert verdict["rank"] == 8
    assert verdict["size_bytes"] == sum(path.stat().st_size for path in adapter.iterdir())
    facts = verdict["facts"]
    assert (facts["num_modules"], facts["num_base_modules"], facts["num_tensors"]) == (4, 14, 8)
    assert facts["targets"] == ["q_proj", "v_proj"] and facts["dtypes"] == ["F32"]


@pytest.mark.case("C46")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_a_value_that_is_not_finite_is_refused(
    value: float, dtype: str, adapter: Path, base: Path
) -> None:
    def change(tensors: dict[str, Any]) -> None:
        name = next(name for name in tensors if "v_proj.lora_B" in name)
        tensors[name] = tensors[name].astype(dtype)
        tensors[name][3, 2] = value

    edit(adapter, change)
    verdict = verdict_of(adapter, base)
    assert codes(verdict) == {"non_finite_values"} and verdict["digest"] is None
    assert "v_proj.lora_B" in verdict["problems"][0]["where"]
    assert verdict["problems"][0]["found"] == "1"


@pytest.mark.case("C46")
def test_bfloat16_is_looked_into(tmp_path: Path) -> None:
    # 1.0, NaN, -0.0, infinity, -3.0
    raw = struct.pack("<5H", 0x3F80, 0x7FC0, 0x8000, 0x7F80, 0xC040)
    header = {"a": {"dtype": "BF16", "shape": [5], "data_offsets": [0, 10]}}
    encoded = json.dumps(header).encode()
    path = tmp_path / WEIGHTS
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + raw)
    stats = scan(path, read_header(path))["a"]
    assert (stats.num_nonfinite, stats.max_abs) == (2, 3.0)


def test_values_beyond_the_first_chunk_are_seen(tmp_path: Path) -> None:
    values = np.zeros(CHUNK_BYTES // 4 + 5, "f4")
    values[-1] = np.nan
    values[-2] = 7
    save_file({"a": values}, tmp_path / WEIGHTS)
    stats = scan(tmp_path / WEIGHTS, read_header(tmp_path / WEIGHTS))["a"]
    assert (stats.num_nonfinite, stats.max_abs) == (1, 7.0)


def zero(part: str) -> Any:
    def change(tensors: dict[str, Any]) -> None:
        for name in tensors:
            if part in name:
                tensors[name] = np.zeros_like(tensors[name])

    return change


def test_an_adapter_without_effect_is_refused(adapter: Path, base: Path) -> None:
    """An untrained adapter has B = 0: it would be the base model under another name."""
    edit(adapter, zero("lora_B"))
    assert codes(verdict_of(adapter, base)) == {"no_effect"}


def test_a_module_without_effect_is_warned_of(adapter: Path, base: Path) -> None:
    edit(adapter, zero("0.self_attn.q_proj.lora_A"))
    verdict = verdict_of(adapter, base)
    assert verdict["digest"] and [w["code"] for w in verdict["warnings"]] == ["idle_modules"]


def test_an_activated_lora_is_accepted_and_its_invocation_told(adapter: Path, base: Path) -> None:
    set_config(adapter, alora_invocation_tokens=[5, 6])
    verdict = verdict_of(adapter, base)
    assert verdict["problems"] == [] and verdict["facts"]["invocation_tokens"] == [5, 6]


@pytest.mark.case("C04")
def test_alpha_zero_is_accepted_with_a_warning(adapter: Path, base: Path) -> None:
    set_config(adapter, lora_alpha=0)
    verdict = verdict_of(adapter, base)
    assert verdict["digest"] and "no_effect" in {w["code"] for w in verdict["warnings"]}


@pytest.mark.case("C04")
def test_a_scale_that_overflows_is_refused(adapter: Path, base: Path) -> None:
    set_config(adapter, lora_alpha=1e60)
    assert codes(verdict_of(adapter, base)) == {"scale_overflow"}


@pytest.mark.case("C31")
@pytest.mark.parametrize("name", ["org/Other-Model", "/home/me/llama", "../../etc", "--help"])
def test_another_base_name_is_only_a_warning(name: str, adapter: Path, base: Path) -> None:
    set_config(adapter, base_model_name_or_path=name)
    verdict = verdict_of(adapter, base)
    assert verdict["digest"]
    assert [w["code"] for w in verdict["warnings"]] == ["other_base_model"]


def test_reasons_of_config_header_and_values_come_together(adapter: Path, base: Path) -> None:
    set_config(adapter, use_dora=True, bias="all")
    edit(adapter, lambda tensors: tensors.update(x=np.array([np.nan], "f4")))
    found = codes(verdict_of(adapter, base))
    assert found == {"unsupported_use_dora", "unsupported_bias", "non_finite_values"}
    (adapter / WEIGHTS).write_bytes(b"\x01")
    found = codes(verdict_of(adapter, base))
    assert found == {"unsupported_use_dora", "unsupported_bias", "corrupt_safetensors"}


@pytest.mark.case("C48")
def test_a_pickle_is_never_opened(adapter: Path, base: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    # What pickle.dumps would write for an object whose __reduce__ calls open(marker, "w").
    text = str(marker).encode()
    payload = b"cbuiltins\nopen\n(V" + text + b"\nVw\ntR."
    for content in (payload, b"\x80\x02" + payload + b"." * 64, b"PK\x03\x04" + payload):
        (adapter / WEIGHTS).write_bytes(content)
        assert codes(verdict_of(adapter, base)) <= {"pickle", "corrupt_safetensors"}
    assert not marker.exists()


@pytest.mark.case("C29")
def test_the_child_loads_no_torch_no_django_and_opens_no_socket() -> None:
    code = (
        "import sys, adapters.validation.__main__, adapters.validation.check;"
        "bad = {'torch', 'django', 'socket', 'urllib.request', 'transformers'} & set(sys.modules);"
        "sys.exit(', '.join(bad) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def request_for(folder: Path, base: Path) -> CheckRequest:
    return CheckRequest(str(folder), str(base), "tiny", 64, 1 << 26)


def test_too_little_memory_ends_the_child_and_not_the_worker(adapter: Path, base: Path) -> None:
    with pytest.raises(ValidationCrashed) as caught:
        run_child(request_for(adapter, base), ChildLimits(memory_bytes=1 << 25), lambda _: None)
    assert str(adapter) not in str(caught.value)


def test_cpu_time_ends_the_child(tmp_path: Path, base: Path) -> None:
    folder = make_adapter(tmp_path / "big", base)
    # 256 MB of values: more than a second of work.
    edit(folder, lambda tensors: tensors.update(x=np.ones((1 << 14, 1 << 12), "f4")))
    with pytest.raises(ValidationCrashed) as caught:
        run_child(request_for(folder, base), ChildLimits(cpu_s=0), lambda _: None)
    assert caught.value.is_clients_fault


def test_a_base_model_that_cannot_be_read_is_our_fault(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(ValidationCrashed) as caught:
        run_child(request_for(adapter, tmp_path / "absent"), ChildLimits(), lambda _: None)
    assert not caught.value.is_clients_fault
