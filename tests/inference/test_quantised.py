"""A quantised base is refused by name, before anything is served on it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import quantization_config as quantisers

from inference.model_spec import ModelError, ModelSpec
from tests.inference.driving import make_engine
from tests.tiny import make_base

WEIGHT = "model.layers.0.self_attn.q_proj.weight"
STEM = WEIGHT.removesuffix("weight")
Tensors = dict[str, torch.Tensor]

# As each writes itself into config.json, by transformers' own classes where they need no more than
# themselves; the last three as the published checkpoints have it.
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "bitsandbytes, 4 bits": (
        quantisers.BitsAndBytesConfig(load_in_4bit=True).to_dict(),
        "bitsandbytes, 4 bits",
    ),
    "bitsandbytes, 8 bits": (
        quantisers.BitsAndBytesConfig(load_in_8bit=True).to_dict(),
        "bitsandbytes, 8 bits",
    ),
    "GPTQ": (quantisers.GPTQConfig(bits=4).to_dict(), "gptq, 4 bits"),
    "AWQ": (quantisers.AwqConfig(bits=4).to_dict(), "awq, 4 bits"),
    "fp8 in blocks": (quantisers.FineGrainedFP8Config().to_dict(), "fp8"),
    "fp8 of FBGEMM": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fbgemm_fp8"),
    "compressed-tensors": (
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}},
        "compressed-tensors",
    ),
    "MXFP4": ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, "mxfp4"),
}
# Files that older releases wrote instead.
FILES: dict[str, tuple[dict[str, Any], str]] = {
    "quantize_config.json": ({"bits": 4, "group_size": 128, "desc_act": False}, "4 bits"),
    "quant_config.json": ({"w_bit": 4, "q_group_size": 128, "version": "GEMM"}, "GEMM, 4 bits"),
    "hf_quant_config.json": (
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}},
        "FP8",
    ),
}


def rewrite(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.case("C73")
@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_config_that_says_so(kind: str, key: str, tmp_path: Path) -> None:
    """At a peer LoRA was added to a quantised layer's input or output in the wrong scale: fluent
    nonsense, while the base alone was right. No quantised base is served here: refused at the
    start, by the quantiser's name, for the engine and for who checks uploads.
    """
    values, name = CONFIGS[kind]
    base = make_base(tmp_path)
    rewrite(base / "config.json", **{key: values})
    for load in (ModelSpec.load, make_engine):
        with pytest.raises(ModelError) as caught:
            load(base)
        assert f"{key}: quantised weights ({name})" in str(caught.value)
        assert "expected the same model in float32, bfloat16 or float16" in str(caught.value)


@pytest.mark.case("C73")
@pytest.mark.parametrize("file", FILES)
def test_a_file_that_says_so(file: str, tmp_path: Path) -> None:
    values, name = FILES[file]
    base = make_base(tmp_path)
    (base / file).write_text(json.dumps(values))
    with pytest.raises(ModelError) as caught:
        make_engine(base)
    assert f"{file}: quantised weights" in str(caught.value) and name in str(caught.value)


def int8(weight: torch.Tensor) -> Tensors:
    scale = weight.abs().amax(1)
    return {WEIGHT: (weight / scale[:, None] * 127).round().to(torch.int8), f"{STEM}SCB": scale}


def nf4(weight: torch.Tensor) -> Tensors:
    packed = torch.zeros(weight.numel() // 2, 1, dtype=torch.uint8)
    return {WEIGHT: packed, f"{WEIGHT}.absmax": torch.ones(weight.numel() // 64)}


def fp8(weight: torch.Tensor) -> Tensors:
    scale = weight.abs().max() / 448
    return {
        WEIGHT: (weight / scale).to(torch.float8_e4m3fn),
        f"{STEM}weight_scale_inv": scale[None],
    }


def gptq(weight: torch.Tensor) -> Tensors:
    num_out, num_in = weight.shape
    return {
        f"{STEM}qweight": torch.zeros(num_in // 8, num_out, dtype=torch.int32),
        f"{STEM}qzeros": torch.zeros(1, num_out // 8, dtype=torch.int32),
        f"{STEM}scales": torch.ones(1, num_out, dtype=torch.float16),
        f"{STEM}g_idx": torch.zeros(num_in, dtype=torch.int32),
    }


def compressed(weight: torch.Tensor) -> Tensors:
    num_out, num_in = weight.shape
    return {
        f"{STEM}weight_packed": torch.zeros(num_out, num_in // 8, dtype=torch.int32),
        f"{STEM}weight_scale": torch.ones(num_out, 1),
        f"{STEM}weight_shape": torch.tensor([num_out, num_in]),
    }


@pytest.mark.case("C73")
@pytest.mark.parametrize(
    ("layout", "found"),
    [
        (int8, "int8"),
        (nf4, "uint8"),
        (fp8, "float8_e4m3fn"),
        (gptq, "packed"),
        (compressed, "packed"),
    ],
)
def test_weights_that_a_config_is_silent_about(
    layout: Callable[[torch.Tensor], Tensors], found: str, tmp_path: Path
) -> None:
    """int8 and fp8 weights have the shape that is wanted: copied without their scales they would
    be served.
    """
    base = make_base(tmp_path)
    tensors = load_file(base / "model.safetensors")
    save_file(tensors | layout(tensors.pop(WEIGHT)), base / "model.safetensors")
    with pytest.raises(ModelError) as caught:
        make_engine(base)
    assert STEM in str(caught.value) and f"quantised weights ({found})" in str(caught.value)
