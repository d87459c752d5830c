"""The committed adapters: publishable, small, as their recipes say, valid for the base model."""

import json
from pathlib import Path

import pytest

from demo.train import ADAPTERS_DIR, BASE_MODEL_NAME, RECIPES
from inference.adapter_format import match_tensors, parse_config, read_header
from inference.model_spec import ModelSpec

MAX_TOTAL_BYTES = 15 * 2**20
# The base model's shape, so that this needs no download.
BASE_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "vocab_size": 49152,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NAMES = sorted(RECIPES)


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    (tmp_path / "config.json").write_text(json.dumps(BASE_CONFIG))
    return ModelSpec.load(tmp_path)


def test_there_is_one_for_each_recipe_and_they_are_small() -> None:
    assert sorted(path.name for path in ADAPTERS_DIR.iterdir()) == NAMES
    sizes = [(ADAPTERS_DIR / name / "adapter_model.safetensors").stat().st_size for name in NAMES]
    assert sum(sizes) <= MAX_TOTAL_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_the_config_is_the_recipe_and_names_no_local_path(name: str) -> None:
    config = json.loads((ADAPTERS_DIR / name / "adapter_config.json").read_text())
    recipe = RECIPES[name]
    assert config["base_model_name_or_path"] == BASE_MODEL_NAME
    assert config["target_modules"] == sorted(recipe.targets)
    assert (config["r"], config["lora_alpha"]) == (recipe.rank, recipe.alpha)
    assert config["use_rslora"] == recipe.use_rslora


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_used_by_the_base_model(name: str, spec: ModelSpec) -> None:
    folder = ADAPTERS_DIR / name
    config, problems, _ = parse_config((folder / "adapter_config.json").read_bytes())
    assert config is not None, problems
    header = read_header(folder / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in header.values()} == {"BF16"}
    plan, problems, warnings = match_tensors(config, header, spec, max_rank=64)
    assert plan is not None, problems
    assert (problems, warnings) == ([], [])


@pytest.mark.parametrize("name", NAMES)
def test_its_card_says_how_it_was_made(name: str) -> None:
    card = (ADAPTERS_DIR / name / "README.md").read_text()
    for heading in ("## Use", "## Data", "## Recipe", "## Scores", "## Limits"):
        assert heading in card


def test_ranks_and_targets_differ_and_one_is_rslora() -> None:
    assert len({recipe.rank for recipe in RECIPES.values()}) == 3
    assert len({recipe.targets for recipe in RECIPES.values()}) == 3
    assert sum(recipe.use_rslora for recipe in RECIPES.values()) == 1
