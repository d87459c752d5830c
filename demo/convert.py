"""A Llama GGUF file to a plain Hugging Face directory, without torch or transformers.

Weights are written in float32: the 4-bit blocks (scale · q + minimum, both float16) are not
representable in fewer bits, and float32 keeps the result bit for bit what other loaders compute.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKEN = 3
TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf: Path, folder: Path) -> None:
    """Write config.json, model.safetensors, the tokenizer and its chat template into folder."""
    reader = GGUFReader(gguf)
    folder.mkdir()
    weights = read_weights(reader)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    # safetensors creates files for their owner only; a container's user reads it too.
    (folder / "model.safetensors").chmod(0o644)
    is_tied = "lm_head.weight" not in weights
    _write_json(folder / "config.json", model_config(reader, is_tied))
    _write_json(folder / "generation_config.json", special_token_ids(reader))
    build_tokenizer(reader).save(str(folder / "tokenizer.json"))
    template = _field(reader, "tokenizer.chat_template")
    (folder / "chat_template.jinja").write_text(template)
    _write_json(folder / "tokenizer_config.json", tokenizer_config(reader, template))


def read_weights(reader: GGUFReader) -> dict[str, np.ndarray[Any, Any]]:
    num_heads = {
        "attn_q": _field(reader, "llama.attention.head_count"),
        "attn_k": _field(reader, "llama.attention.head_count_kv"),
    }
    weights = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name, part = hugging_face_name(tensor.name)
        if part in num_heads:
            weight = interleaved_to_halves(weight, num_heads[part])
        weights[name] = np.ascontiguousarray(weight)
    return weights


def hugging_face_name(name: str) -> tuple[str, str]:
    """("model.layers.0.self_attn.q_proj.weight", "attn_q") for "blk.0.attn_q.weight"."""
    if name in TOP_LEVEL:
        return TOP_LEVEL[name], ""
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{IN_LAYER[part]}.weight", part


def interleaved_to_halves(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Rows of a q or k projection: GGUF keeps rotary pairs side by side, Hugging Face in halves."""
    num_rows, width = weight.shape
    pairs = weight.reshape(num_heads, num_rows // num_heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(num_rows, width)


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "float32",
}


def model_config(reader: GGUFReader, is_tied: bool) -> dict[str, Any]:
    epsilon = _field(reader, "llama.attention.layer_norm_rms_epsilon")
    return {
        **LLAMA,
        "hidden_size": _field(reader, "llama.embedding_length"),
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": _field(reader, "llama.attention.head_count"),
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "vocab_size": len(_field(reader, "tokenizer.ggml.tokens")),
        # GGUF keeps it as a float32, 9.99999974e-06; the published value is 1e-05.
        "rms_norm_eps": float(f"{epsilon:.6g}"),
        "rope_theta": _field(reader, "llama.rope.freq_base"),
        "tie_word_embeddings": is_tied,
        **special_token_ids(reader),
    }


def special_token_ids(reader: GGUFReader) -> dict[str, int]:
    end = _field(reader, "tokenizer.ggml.eos_token_id")
    begin = _field(reader, "tokenizer.ggml.bos_token_id")
    return {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": end}


def build_tokenizer(reader: GGUFReader) -> Tokenizer:
    """The byte-level BPE with each digit apart, as GGUF's `pre = smollm` means.

    Other loaders drop the digit rule and then split numbers differently from the trained model.
    """
    pre = _field(reader, "tokenizer.ggml.pre")
    if pre != "smollm":
        raise ValueError(f"pre-tokenizer {pre!r} is not known here, expected 'smollm'")
    tokens = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = _field(reader, "tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return tokenizer


def tokenizer_config(reader: GGUFReader, template: str) -> dict[str, Any]:
    tokens = _field(reader, "tokenizer.ggml.tokens")
    ids = special_token_ids(reader)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[_field(reader, "tokenizer.ggml.unknown_token_id")],
        "model_max_length": _field(reader, "llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }


def _field(reader: GGUFReader, key: str) -> Any:
    if key not in reader.fields:
        raise ValueError(f"the GGUF file has no {key}")
    return reader.fields[key].contents()


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
