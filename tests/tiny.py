"""A tiny random base model and PEFT-format adapters, written to disk in milliseconds.

Random weights are large enough that an adapter changes greedy output: a probe too weak to be
noticed passes every parity test. Needs neither transformers nor peft.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from inference.model_spec import ModelSpec

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# 256 bytes and the special tokens; EOS is <|im_end|>.
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
EOS_TOKEN_ID = 258

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION, "gate_proj", "up_proj", "down_proj")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "mistral": ("MistralForCausalLM", "mistral"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}


def make_base(directory: Path, architecture: str = "llama", seed: int = 0, **config: Any) -> Path:
    """Writes a 2-layer base (4 query heads, 2 KV heads, hidden 64) to directory and returns it.

    config overrides keys of config.json, for example num_hidden_layers or rope_scaling.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name, model_type = ARCHITECTURES[architecture]
    values: dict[str, Any] = {
        "architectures": [name],
        "model_type": model_type,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": "float32",
    } | config
    _write_json(directory / "config.json", values)
    _write_json(directory / "generation_config.json", {"eos_token_id": values["eos_token_id"]})
    spec = ModelSpec.load(directory)
    save_file(_weights(spec, seed), directory / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(directory)
    return directory


def make_adapter(
    directory: Path,
    base: Path,
    r: int = 8,
    targets: Sequence[str] = ALL_LINEAR,
    alpha: float | None = None,
    seed: int = 1,
    strength: float = 1.0,
    use_rslora: bool = False,
    rank_pattern: Mapping[str, int] | None = None,
    alpha_pattern: Mapping[str, float] | None = None,
    layers: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Writes a PEFT LoRA adapter with random A and B to directory and returns it.

    strength: size of the change relative to the base projection's output, whatever rank and alpha.
    layers: only these layers are adapted (layers_to_transform). config overrides the written JSON.
    """
    directory.mkdir(parents=True, exist_ok=True)
    alpha = 2.0 * r if alpha is None else alpha
    values: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": r,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": list(targets),
        "rank_pattern": dict(rank_pattern or {}),
        "alpha_pattern": dict(alpha_pattern or {}),
        "use_rslora": use_rslora,
        "layers_to_transform": None if layers is None else list(layers),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_dora": False,
    } | config
    _write_json(directory / "adapter_config.json", values)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for module, (num_in, num_out) in ModelSpec.load(base).lora_modules().items():
        layer = int(module.split(".")[2])
        if module.rsplit(".", 1)[1] not in targets or (layers is not None and layer not in layers):
            continue
        rank = _by_pattern(rank_pattern, module, r)
        scale = _by_pattern(alpha_pattern, module, alpha) / (
            math.sqrt(rank) if use_rslora else rank
        )
        a = torch.randn(rank, num_in, generator=generator) / math.sqrt(num_in)
        b = torch.randn(num_out, rank, generator=generator) * (strength / (scale or 1.0))
        tensors[f"base_model.model.{module}.lora_A.weight"] = a.to(dtype)
        tensors[f"base_model.model.{module}.lora_B.weight"] = (b / math.sqrt(rank)).to(dtype)
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    return directory


def _by_pattern(pattern: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    for key, value in (pattern or {}).items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default


def _weights(spec: ModelSpec, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float | None = None) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * (scale or 1 / math.sqrt(shape[-1]))

    def around_one(size: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(size, generator=generator)

    hidden = spec.hidden_size
    tensors = {"model.embed_tokens.weight": normal(spec.vocab_size, hidden, scale=1.0)}
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        tensors[prefix + "input_layernorm.weight"] = around_one(hidden)
        tensors[prefix + "post_attention_layernorm.weight"] = around_one(hidden)
        for name, (num_in, num_out) in spec.projections().items():
            tensors[f"{prefix}{name}.weight"] = normal(num_out, num_in)
            if _has_bias(spec, name):
                tensors[f"{prefix}{name}.bias"] = normal(num_out, scale=0.5)
        if spec.qk_norm:
            tensors[prefix + "self_attn.q_norm.weight"] = around_one(spec.head_dim)
            tensors[prefix + "self_attn.k_norm.weight"] = around_one(spec.head_dim)
    tensors["model.norm.weight"] = around_one(hidden)
    if not spec.tie_word_embeddings:
        tensors["lm_head.weight"] = normal(spec.vocab_size, hidden, scale=0.3)
    return tensors


def _has_bias(spec: ModelSpec, name: str) -> bool:
    if name == "self_attn.o_proj":
        return spec.o_bias
    return spec.qkv_bias if name.startswith("self_attn") else spec.mlp_bias


def _write_tokenizer(directory: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: number for number, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2))
