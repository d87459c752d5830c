"""Base weights from a Hugging Face directory, or random ones of the same shape, on the device."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from inference.lora import GROUPS
from inference.model_spec import ModelError, ModelSpec, quantised
from inference.models.linear import Linear, linear
from inference.models.llama import LayerWeights, ModelWeights

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

# A model of no more keeps its weights in a form for one row beside the packed one, on the CPU.
MAX_ONE_ROW_BYTES = 2 << 30

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# What quantisers put in a weight's place: GPTQ and AWQ, compressed-tensors.
PACKED_NAMES = ("qweight", "weight_packed")

# Fills the given tensor with the named weight of the checkpoint.
Fill = Callable[[str, torch.Tensor], None]


def load_weights(
    path: str | Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device
) -> ModelWeights:
    """Raises ModelError naming the file or tensor that is missing, wrong or of the wrong shape."""
    return _build(spec, dtype, device, _Checkpoint(Path(path)).fill)


def dummy_weights(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Random weights, norms of one: for benchmarks, where only shapes matter."""
    generator = torch.Generator(device).manual_seed(0)

    def fill(name: str, target: torch.Tensor) -> None:
        if name.endswith("norm.weight"):
            target.fill_(1.0)
        else:
            target.normal_(0.0, 0.02, generator=generator)

    return _build(spec, dtype, device, fill)


def _build(spec: ModelSpec, dtype: torch.dtype, device: torch.device, fill: Fill) -> ModelWeights:
    keeps_one_row = _linear_elements(spec) * dtype.itemsize <= MAX_ONE_ROW_BYTES
    makes = _Builder(spec, dtype, device, fill, keeps_one_row)
    vocab = (spec.vocab_size, spec.hidden_size)
    embed = makes.tensor("model.embed_tokens.weight", *vocab)
    lm_head = embed if spec.tie_word_embeddings else makes.tensor("lm_head.weight", *vocab)
    return ModelWeights(
        embed=embed,
        layers=tuple(makes.layer(number) for number in range(spec.num_layers)),
        norm=makes.tensor("model.norm.weight", spec.hidden_size),
        lm_head=linear(lm_head, keeps_one_row=keeps_one_row),
    )


@dataclass(frozen=True)
class _Builder:
    """Tensors as the model wants them, filled by name."""

    spec: ModelSpec
    dtype: torch.dtype
    device: torch.device
    fill: Fill
    keeps_one_row: bool

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        target = torch.empty(shape, dtype=self.dtype, device=self.device)
        self.fill(name, target)
        return target

    def layer(self, number: int) -> LayerWeights:
        spec, prefix = self.spec, f"model.layers.{number}."
        norm = prefix + "self_attn.{}_norm.weight"
        return LayerWeights(
            input_norm=self.tensor(prefix + "input_layernorm.weight", spec.hidden_size),
            qkv=self._fused(prefix, "qkv", spec.qkv_bias),
            o=self._fused(prefix, "o", spec.o_bias),
            post_norm=self.tensor(prefix + "post_attention_layernorm.weight", spec.hidden_size),
            gate_up=self._fused(prefix, "gate_up", spec.mlp_bias),
            down=self._fused(prefix, "down", spec.mlp_bias),
            q_norm=self.tensor(norm.format("q"), spec.head_dim) if spec.qk_norm else None,
            k_norm=self.tensor(norm.format("k"), spec.head_dim) if spec.qk_norm else None,
        )

    def _fused(self, prefix: str, group: str, has_bias: bool) -> Linear:
        """The group's projections, one behind the other in one matrix."""
        shapes = [self.spec.projections()[name] for name in GROUPS[group]]
        num_in, num_out = shapes[0][0], sum(shape[1] for shape in shapes)
        weight = torch.empty(num_out, num_in, dtype=self.dtype, device=self.device)
        bias = torch.empty(num_out, dtype=self.dtype, device=self.device) if has_bias else None
        start = 0
        for name, (_, size) in zip(GROUPS[group], shapes, strict=True):
            self.fill(f"{prefix}{name}.weight", weight[start : start + size])
            if bias is not None:
                self.fill(f"{prefix}{name}.bias", bias[start : start + size])
            start += size
        return linear(weight, bias, self.keeps_one_row)


def _linear_elements(spec: ModelSpec) -> int:
    layer = sum(num_in * num_out for num_in, num_out in spec.projections().values())
    return spec.num_layers * layer + spec.vocab_size * spec.hidden_size


class _Checkpoint:
    """Which file holds which tensor: an index with shards, or one file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = self._find()

    def fill(self, name: str, target: torch.Tensor) -> None:
        if name not in self._files:
            raise self._missing(name)
        file = self._files[name]
        try:
            with safe_open(file, framework="pt") as tensors:
                source = tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file}: cannot read {name}: {error}") from error
        if source.dtype not in FLOATS:
            # Copied without its scales it would be another model, and nobody told.
            raise quantised(f"{file}: {name}", str(source.dtype).removeprefix("torch."))
        if source.shape != target.shape:
            expected, found = list(target.shape), list(source.shape)
            raise ModelError(f"{file}: {name}: expected shape {expected}, found {found}")
        target.copy_(source)

    def _missing(self, name: str) -> ModelError:
        for packed in PACKED_NAMES:
            there = name.removesuffix("weight") + packed
            if there in self._files:
                return quantised(f"{self._files[there]}: {there}", "packed")
        return ModelError(f"{self._folder}: no tensor {name} in the weights")

    def _find(self) -> dict[str, Path]:
        index = self._folder / INDEX_NAME
        try:
            if index.exists():
                names = json.loads(index.read_text("utf-8"))["weight_map"]
                return {name: self._folder / file for name, file in names.items()}
            single = self._folder / SINGLE_NAME
            with safe_open(single, framework="pt") as tensors:
                return dict.fromkeys(tensors.keys(), single)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ModelError(
                f"{self._folder}: expected {SINGLE_NAME} or {INDEX_NAME}: {error}"
            ) from error
