"""Logits of every architecture equal transformers', in fp32, in one chunk and in many."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from inference import EngineConfig
from inference.batch import ForwardBatch, SequenceBatch, TokenBatch
from inference.model_spec import ModelError, ModelSpec
from inference.startup import Parts, start
from tests.inference.oracle import Oracle
from tests.tiny import make_base

PROMPT = [(7 * i * i + 3) % 256 for i in range(150)]

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, head_dim unlike hidden/heads": ("llama", {"head_dim": 24}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, rope llama3": ("llama", {"rope_scaling": LLAMA3}),
    "llama, rope linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama, rope_parameters": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
}


def all_logits(parts: Parts, token_ids: list[int], chunk: int) -> torch.Tensor:
    """[T, V] by prefill chunks through the paged cache, blocks in a scrambled order."""
    block_size = parts.kv.shape[3]
    blocks = list(range(parts.num_kv_blocks - 1, 0, -1))
    found = []
    for start_at in range(0, len(token_ids), chunk):
        end = min(start_at + chunk, len(token_ids))
        positions = torch.arange(start_at, end)
        places = [
            blocks[p // block_size] * block_size + p % block_size for p in range(start_at, end)
        ]
        tokens = TokenBatch(
            torch.tensor(token_ids[start_at:end]), positions, torch.tensor(places), lora=None
        )
        sequences = SequenceBatch(
            block_tables=torch.tensor([blocks], dtype=torch.int32),
            query_start=torch.tensor([0, end - start_at], dtype=torch.int32),
            context_lens=torch.tensor([end], dtype=torch.int32),
            num_decodes=0,
            max_decode_context=0,
            prefills=((end - start_at, end),),
        )
        batch = ForwardBatch(tokens, sequences, torch.arange(end - start_at))
        with torch.inference_mode():
            found.append(parts.model.forward(batch, parts.kv))
    return torch.cat(found)


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    architecture, config = VARIANTS[name]
    base = make_base(tmp_path / "base", architecture, **config)
    expected = Oracle(base).logits(PROMPT)
    parts = start(EngineConfig(str(base), device="cpu", kv_cache_bytes=1 << 20))
    for chunk in (150, 37):
        torch.testing.assert_close(all_logits(parts, PROMPT, chunk), expected, atol=2e-4, rtol=0)


def test_another_architecture_is_refused_with_the_list_of_supported_ones(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    config["architectures"] = ["GemmaForCausalLM"]
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"GemmaForCausalLM.*Qwen3ForCausalLM"):
        ModelSpec.load(base)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "64"),
        ("num_key_value_heads", 3),
        ("rope_scaling", {"rope_type": "yarn", "factor": 2.0}),
        ("hidden_act", "gelu"),
        ("quantization_config", {"quant_method": "gptq"}),
    ],
)
def test_a_config_that_cannot_be_served_names_its_key(
    key: str, value: object, tmp_path: Path
) -> None:
    base = make_base(tmp_path / "base")
    config = json.loads((base / "config.json").read_text()) | {key: value}
    (base / "config.json").write_text(json.dumps(config))
    named = key.replace("_", ".")
    with pytest.raises(ModelError, match=named):
        ModelSpec.load(base)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", num_hidden_layers=1)
    config = json.loads((base / "config.json").read_text()) | {"num_hidden_layers": 2}
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"model\.layers\.1\.input_layernorm\.weight"):
        start(EngineConfig(str(base), device="cpu"))


def test_a_sliding_window_bounds_the_length_that_is_served(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "mistral", sliding_window=128)
    assert ModelSpec.load(base).max_exact_len == 128
    with pytest.raises(ModelError, match="limit is 128"):
        start(EngineConfig(str(base), device="cpu", max_model_len=256))


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    base = make_base(tmp_path / "base")
    expected = Oracle(base).logits(PROMPT)
    tensors = load_file(base / "model.safetensors")
    names = sorted(tensors)
    index = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-{number}.safetensors"
        save_file({name: tensors[name].clone() for name in part}, base / file)
        index |= dict.fromkeys(part, file)
    (base / "model.safetensors").unlink()
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    parts = start(EngineConfig(str(base), device="cpu", kv_cache_bytes=1 << 20))
    torch.testing.assert_close(all_logits(parts, PROMPT, 64), expected, atol=2e-4, rtol=0)
