"""Adapters as PEFT writes them: the engine's logits are PEFT's, or they are refused by name."""

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.errors import EngineError, ErrorCode
from inference.request import SamplingParams, Token
from tests.inference.driving import PROMPT, Client, make_engine
from tests.tiny import make_base

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

TOLERANCE = 1e-3
# PEFT 0.21 uses names that transformers 5 is about to drop, and warns of much that is meant here.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """qwen2 has biases."""
    return make_base(tmp_path_factory.mktemp("peft") / "base", request.param)


@pytest.fixture(scope="module")
def model(base: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)


def trained(model: Any, seed: int = 1, **arguments: Any) -> Any:
    """A PEFT model on a copy, its weights moved as far as training would, and further."""
    arguments = {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj"]} | arguments
    config = LoraConfig(task_type="CAUSAL_LM", **arguments)
    return shaken(get_peft_model(copy.deepcopy(model), config), seed)


def shaken(peft_model: Any, seed: int = 1) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in peft_model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return peft_model.eval()


@torch.inference_mode()
def logprobs_of(model: Any) -> torch.Tensor:
    return torch.log_softmax(model(input_ids=torch.tensor([PROMPT])).logits[0, -1].float(), -1)


def check_equal(base: Path, folder: Path, expected: torch.Tensor, model: Any) -> None:
    """Through the whole engine; and the adapter is no probe that does nothing."""
    assert (expected - logprobs_of(model)).abs().max() > 10 * TOLERANCE
    client = Client(make_engine(base))
    client.engine.load_adapter("x", str(folder))
    params = SamplingParams(1, temperature=0.0, ignore_eos=True, num_logprobs=256)
    request_id = client.submit(PROMPT, params, "x")
    client.drain()
    event = client.events[request_id][0]
    assert isinstance(event, Token) and event.logprobs is not None
    ids, found = zip(*event.logprobs.top, strict=True)
    torch.testing.assert_close(torch.tensor(found), expected[list(ids)], atol=TOLERANCE, rtol=0)


SERVED: dict[str, dict[str, Any]] = {
    "C01 rslora": {"r": 16, "lora_alpha": 16, "use_rslora": True},
    "C01 rslora with ranks": {
        "use_rslora": True,
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"down_proj": 9},
    },
    "C03 patterns": {
        "r": 8,
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"proj": 4, "^model.layers.1.mlp.down_proj": 16},
        "alpha_pattern": {r".*\.0\.self_attn\.q_proj": 32},
    },
    "C04 a fraction": {"r": 8, "lora_alpha": 12.5, "lora_dropout": 0.5},
    "C15 a pattern": {"target_modules": r".*layers\.1\.(self_attn\.(q|v)|mlp\.up)_proj"},
    "C15 all-linear": {"target_modules": "all-linear"},
    "C16 one layer": {"target_modules": ["k_proj", "gate_proj"], "layers_to_transform": [1]},
    "C27 fan_in_fan_out": {"fan_in_fan_out": True, "target_modules": ["o_proj", "up_proj"]},
    "C39 parts of fused projections": {
        "r": 16,
        "target_modules": ["k_proj", "up_proj"],
        "rank_pattern": {"up_proj": 2},
        "alpha_pattern": {"k_proj": 64},
    },
    "eva's and orthogonal beginnings leave the base": {"init_lora_weights": "orthogonal"},
}


def cases(table: dict[str, Any]) -> list[Any]:
    """A name may begin with the number of its case."""
    found = []
    for name, value in table.items():
        first = name.split()[0]
        marks = [pytest.mark.case(first)] if first[0] == "C" and first[1:].isdigit() else []
        found.append(pytest.param(value, id=name, marks=marks))
    return found


@pytest.mark.parametrize("arguments", cases(SERVED))
def test_what_peft_writes_is_served_as_peft_serves_it(
    arguments: dict[str, Any], base: Path, model: Any, tmp_path: Path
) -> None:
    peft_model = trained(model, **arguments)
    peft_model.save_pretrained(tmp_path)
    check_equal(base, tmp_path, logprobs_of(peft_model), model)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "C11 DoRA": ({"use_dora": True}, "use_dora"),
    "C13 PiSSA": ({"init_lora_weights": "pissa"}, "init_lora_weights"),
    "C13 OLoRA": ({"init_lora_weights": "olora"}, "init_lora_weights"),
    "C18 a head": ({"modules_to_save": ["lm_head", "embed_tokens"]}, "modules_to_save"),
    "C20 all biases": ({"bias": "all"}, "bias"),
    "C20 biases of targets": ({"bias": "lora_only"}, "bias"),
    "C22 tokens": ({"trainable_token_indices": [9, 3]}, "trainable_token_indices"),
    "C24 embeddings": ({"target_modules": ["embed_tokens", "q_proj"]}, "embed_tokens"),
    "C24 the head": ({"target_modules": ["lm_head", "q_proj"]}, "lm_head"),
    "C32 a rank": ({"r": 65}, "rank 65"),
    "lora_bias": ({"lora_bias": True}, "lora_bias"),
    "MLP by layer_replication": ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [pytest.param(*p.values[0], id=p.id, marks=p.marks) for p in cases(REFUSED)],
)
def test_what_peft_writes_and_is_not_served_is_refused_by_name(
    arguments: dict[str, Any], named: str, base: Path, model: Any, tmp_path: Path
) -> None:
    trained(model, **arguments).save_pretrained(tmp_path)
    with pytest.raises(EngineError, match=named) as refused:
        make_engine(base).load_adapter("x", str(tmp_path))
    assert refused.value.code is ErrorCode.INVALID_ADAPTER


@pytest.mark.case("C13")
def test_a_converted_pissa_is_an_ordinary_adapter_of_twice_the_rank(
    base: Path, model: Any, tmp_path: Path
) -> None:
    """PiSSA takes its first product out of the base; the conversion puts it into the adapter."""
    arguments = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
    config = LoraConfig(task_type="CAUSAL_LM", init_lora_weights="pissa", **arguments)
    peft_model = get_peft_model(copy.deepcopy(model), config)
    config.init_lora_weights = True
    peft_model.save_pretrained(tmp_path / "first")
    config.init_lora_weights = "pissa"
    expected = logprobs_of(shaken(peft_model))
    first = str(tmp_path / "first")
    peft_model.save_pretrained(tmp_path / "x", path_initial_model_for_weight_conversion=first)
    written = json.loads((tmp_path / "x" / "adapter_config.json").read_text())
    assert written["r"] == 8
    check_equal(base, tmp_path / "x", expected, model)


BF16, F16 = torch.bfloat16, torch.float16
DTYPES: dict[str, Callable[[str], torch.dtype]] = {
    "A of bf16, B of fp32": lambda name: BF16 if "lora_A" in name else torch.float32,
    "A of fp32, B of fp16": lambda name: F16 if "lora_B" in name else torch.float32,
    "bf16": lambda _: BF16,
    "a layer of each": lambda name: BF16 if "layers.0" in name else F16,
}


@pytest.mark.case("C44")
@pytest.mark.parametrize("dtype_of", DTYPES.values(), ids=DTYPES)
def test_each_tensor_may_have_a_dtype_of_its_own(
    dtype_of: Callable[[str], torch.dtype], base: Path, model: Any, tmp_path: Path
) -> None:
    """PEFT computes in fp32 with what the file holds, and so does the engine here."""
    trained(model, target_modules=["q_proj", "v_proj", "down_proj"]).save_pretrained(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    tensors = {name: tensor.to(dtype_of(name)) for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    loaded = PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).eval()
    check_equal(base, tmp_path, logprobs_of(loaded), model)


@pytest.mark.case("C34")
def test_the_adapters_name_in_every_key_changes_nothing(
    base: Path, model: Any, tmp_path: Path
) -> None:
    peft_model = trained(model)
    peft_model.save_pretrained(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    renamed = {k.replace(".weight", ".default.weight"): v for k, v in load_file(path).items()}
    save_file(renamed, path, metadata={"format": "pt"})
    check_equal(base, tmp_path, logprobs_of(peft_model), model)
