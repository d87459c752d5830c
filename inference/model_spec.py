"""What a base model is, read from its Hugging Face directory. Free of torch: web side imports it.

Source: config.json as transformers 4 and 5 write it (5 moved rope_theta into rope_parameters).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import EngineError, ErrorCode

SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)

# Qwen2's code has query, key and value biases without a flag in its config.
ARCHITECTURES_WITH_QKV_BIAS = ("Qwen2ForCausalLM",)
ARCHITECTURES_WITH_QK_NORM = ("Qwen3ForCausalLM",)

# Where quantisers say that they were at work: in config.json, or in a file of their own.
QUANTISED_KEYS = ("quantization_config", "compression_config")
QUANTISED_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")


class ModelError(EngineError):
    """The model directory cannot be served: which key, what was expected, what was found."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message)


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding; kind is "default", "linear" (uses factor) or "llama3" (uses all)."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True)
class ModelSpec:
    """Shapes and flags of a Llama-type decoder; max_position and sliding_window in tokens."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope: RopeSpec
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    dtype: str
    eos_token_ids: tuple[int, ...]
    name: str

    @classmethod
    def load(cls, path: str | Path) -> "ModelSpec":
        """Reads config.json and generation_config.json below path. Raises ModelError."""
        folder = Path(path)
        config = _read_json(folder / "config.json")
        if config is None:
            raise ModelError(f"{folder}: no config.json; expected a Hugging Face model directory")
        for name in QUANTISED_FILES:
            if found := _read_json(folder / name):
                raise quantised(f"{folder}: {name}", method_of(found))
        generation = _read_json(folder / "generation_config.json") or {}
        return cls.from_config(config, generation, name=folder.resolve().name)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], generation: dict[str, Any] | None = None, name: str = "model"
    ) -> "ModelSpec":
        """The same from parsed JSON. Raises ModelError naming the key at fault."""
        architecture = _architecture(config)
        _refuse_unserved(config)
        bias = bool(config.get("attention_bias") or config.get("qkv_bias"))
        return cls(
            architecture=architecture,
            **_sizes(config),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=_rope(config),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=bias or architecture in ARCHITECTURES_WITH_QKV_BIAS,
            o_bias=bias and architecture not in ARCHITECTURES_WITH_QKV_BIAS,
            mlp_bias=bool(config.get("mlp_bias", False)),
            qk_norm=architecture in ARCHITECTURES_WITH_QK_NORM,
            sliding_window=_sliding_window(config, architecture),
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
            eos_token_ids=_eos(config, generation or {}),
            name=name,
        )

    @property
    def max_exact_len(self) -> int:
        """Longest sequence, in tokens, for which full attention is the model's own attention."""
        return min(self.max_position, self.sliding_window or self.max_position)

    def projections(self) -> dict[str, tuple[int, int]]:
        """Linear layers of a decoder layer that LoRA can target: name → (in, out)."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        hidden, wide = self.hidden_size, self.intermediate_size
        return {
            "self_attn.q_proj": (hidden, q),
            "self_attn.k_proj": (hidden, kv),
            "self_attn.v_proj": (hidden, kv),
            "self_attn.o_proj": (q, hidden),
            "mlp.gate_proj": (hidden, wide),
            "mlp.up_proj": (hidden, wide),
            "mlp.down_proj": (wide, hidden),
        }

    def lora_modules(self) -> dict[str, tuple[int, int]]:
        """Modules an adapter may target: "model.layers.0.self_attn.q_proj" → (in, out)."""
        return {
            f"model.layers.{layer}.{name}": shape
            for layer in range(self.num_layers)
            for name, shape in self.projections().items()
        }


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures") or []
    for name in names:
        if name in SUPPORTED_ARCHITECTURES:
            return str(name)
    found = ", ".join(map(str, names)) or str(config.get("model_type", "none named"))
    raise ModelError(
        f"config.json: architecture {found} is not supported; "
        f"supported are {', '.join(SUPPORTED_ARCHITECTURES)}"
    )


def _refuse_unserved(config: dict[str, Any]) -> None:
    for key in QUANTISED_KEYS:
        if found := config.get(key):
            raise quantised(f"config.json: {key}", method_of(found))
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"config.json: hidden_act {activation!r} is not supported; expected silu")


def method_of(quantisation: object) -> str:
    """As the quantiser calls itself, and how many bits it left."""
    if not isinstance(quantisation, dict):
        return "an unknown method"
    inner = quantisation.get("quantization")
    found = inner if isinstance(inner, dict) else quantisation
    names = (found.get(key) for key in ("quant_method", "quant_algo", "version", "format"))
    bits = found.get("bits") or found.get("w_bit")
    for width in (4, 8):
        if found.get(f"load_in_{width}bit") or found.get(f"_load_in_{width}bit"):
            bits = width
    name = next((str(one) for one in names if one), "an unnamed method")
    return f"{name}, {bits} bits" if bits else name


def quantised(where: str, how: str) -> ModelError:
    """The refusal: an adapter's sum would be added to other weights than it was trained beside."""
    return ModelError(
        f"{where}: quantised weights ({how}) are not supported; expected the same model in "
        "float32, bfloat16 or float16"
    )


def _sizes(config: dict[str, Any]) -> dict[str, int]:
    """Under the names of ModelSpec, transformers' defaults filled in."""
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    kv_heads = _size(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(
            f"config.json: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    return {
        "hidden_size": hidden,
        "intermediate_size": _size(config, "intermediate_size"),
        "num_layers": _size(config, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": _size(config, "head_dim", hidden // heads),
        "vocab_size": _size(config, "vocab_size"),
        "max_position": _size(config, "max_position_embeddings", 2048),
    }


def _size(config: dict[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {key} must be a positive integer, found {value!r}")
    return value


def _rope(config: dict[str, Any]) -> RopeSpec:
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if config.get("partial_rotary_factor", 1.0) not in (None, 1, 1.0):
        raise ModelError("config.json: partial_rotary_factor other than 1 is not supported")
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind not in ("linear", "llama3"):
        message = f"rope scaling {kind!r} is not supported; supported are default, linear, llama3"
        raise ModelError(f"config.json: {message}")
    original = scaling.get("original_max_position_embeddings")
    return RopeSpec(
        theta=theta,
        kind=kind,
        factor=float(scaling.get("factor", 1.0)),
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_max_position=int(original or config.get("max_position_embeddings", 8192)),
    )


def _sliding_window(config: dict[str, Any], architecture: str) -> int | None:
    window = config.get("sliding_window")
    if architecture.startswith("Qwen") and not config.get("use_sliding_window", False):
        return None
    return int(window) if window else None


def _eos(config: dict[str, Any], generation: dict[str, Any]) -> tuple[int, ...]:
    """generation_config wins: chat models end turns with tokens that config.json does not name."""
    value = generation.get("eos_token_id", config.get("eos_token_id"))
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)
