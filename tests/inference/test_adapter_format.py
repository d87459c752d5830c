"""Adapter files against PEFT itself: which modules, rank and scale; and what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.adapter_format import (
    AdapterPlan,
    Problem,
    digest,
    match_tensors,
    parse_config,
    read_header,
)
from inference.model_spec import ModelSpec
from tests.tiny import make_adapter, make_base

MAX_RANK = 64


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "tiny", num_hidden_layers=3)


@pytest.fixture(scope="module")
def spec(base: Path) -> ModelSpec:
    return ModelSpec.load(base)


def plan_of(folder: Path, spec: ModelSpec, max_rank: int = MAX_RANK) -> AdapterPlan:
    plan, problems = try_plan(folder, spec, max_rank)
    assert plan is not None, problems
    return plan


def try_plan(
    folder: Path, spec: ModelSpec, max_rank: int = MAX_RANK
) -> tuple[AdapterPlan | None, list[Problem]]:
    config, problems, _ = parse_config((folder / "adapter_config.json").read_bytes())
    assert config is not None, problems
    header = read_header(folder / "adapter_model.safetensors")
    plan, problems, _ = match_tensors(config, header, spec, max_rank)
    assert (plan is None) == bool(problems)
    return plan, problems


def codes(problems: list[Problem]) -> set[str]:
    return {problem.code for problem in problems}


def edit(folder: Path, change: Any) -> Path:
    """Rewrites the adapter's tensors with change(dict of tensors)."""
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file(change(tensors) or tensors, path)
    return folder


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    return make_adapter(tmp_path / "adapter", base, targets=("q_proj", "v_proj"))


def test_it_works(adapter: Path, spec: ModelSpec) -> None:
    plan = plan_of(adapter, spec)
    assert len(plan.modules) == 6 and plan.rank == 8
    first = plan.modules["model.layers.0.self_attn.q_proj"]
    assert first.a_name == "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert first.scale == 2.0


# The arguments of PEFT's own LoraConfig; it writes the files, then says what they mean.
PEFT_CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "rslora": {"r": 16, "lora_alpha": 16, "use_rslora": True, "target_modules": ["o_proj"]},
    "float alpha": {"r": 8, "lora_alpha": 12.5, "target_modules": ["k_proj"]},
    "zero alpha": {"r": 8, "lora_alpha": 0, "target_modules": ["k_proj"]},
    "patterns": {
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"proj": 4, "^model.layers.2.mlp.down_proj": 16},
        "alpha_pattern": {".*\\.0\\.self_attn\\.q_proj": 32},
    },
    "rslora with patterns": {
        "r": 8,
        "lora_alpha": 16,
        "use_rslora": True,
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"down_proj": 2, "1.mlp.down_proj": 4},
        "alpha_pattern": {"self_attn.q_proj": 4.5},
    },
    "order of patterns": {
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["q_proj"],
        "rank_pattern": {"self_attn.q_proj": 2, "layers.0.self_attn.q_proj": 4},
    },
    "regex": {"r": 4, "target_modules": r".*layers\.[02]\.self_attn\.(q|v)_proj"},
    "all-linear": {"r": 2, "target_modules": "all-linear"},
    "one layer": {"r": 4, "target_modules": ["q_proj"], "layers_to_transform": [1]},
    "one layer as int": {"r": 4, "target_modules": ["q_proj"], "layers_to_transform": 2},
    "no layers means all": {"r": 4, "target_modules": ["q_proj"], "layers_to_transform": []},
    "layers of a list": {
        "r": 4,
        "target_modules": ["up_proj"],
        "layers_to_transform": [0, 2],
        "layers_pattern": "layers",
    },
    "full path": {"r": 4, "target_modules": ["model.layers.1.mlp.gate_proj", "2.mlp.up_proj"]},
    "excluded": {
        "r": 4,
        "target_modules": ["q_proj", "k_proj"],
        "exclude_modules": ["layers.0.self_attn.q_proj"],
    },
    "excluded by regex": {
        "r": 4,
        "target_modules": ["q_proj"],
        "exclude_modules": r".*\.1\.self_attn\.q_proj",
    },
}


@pytest.fixture(scope="module")
def oracle_model(base: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(base)


# PEFT 0.21 uses names that transformers 5 is about to drop, and tells of a pattern without a match.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:The following:RuntimeWarning")
@pytest.mark.case("C01")
@pytest.mark.case("C03")
@pytest.mark.case("C04")
@pytest.mark.case("C15")
@pytest.mark.case("C16")
@pytest.mark.parametrize("arguments", PEFT_CONFIGS.values(), ids=PEFT_CONFIGS.keys())
def test_modules_ranks_and_scales_are_those_of_peft(
    arguments: dict[str, Any], base: Path, spec: ModelSpec, tmp_path: Path, oracle_model: Any
) -> None:
    """Servers have ignored rsLoRA, compared patterns with parameter names, cut alpha to an int."""
    import copy

    from peft import LoraConfig, PeftModel, get_peft_model
    from peft.tuners.lora import LoraLayer

    config = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **arguments)
    get_peft_model(copy.deepcopy(oracle_model), config).save_pretrained(tmp_path)
    # PEFT sorts the keys when it saves, which changes what ordered patterns mean.
    set_config(tmp_path, **{k: v for k, v in arguments.items() if k.endswith("_pattern")})
    loaded = PeftModel.from_pretrained(copy.deepcopy(oracle_model), tmp_path)
    expected = {
        name.removeprefix("base_model.model."): (layer.r["default"], layer.scaling["default"])
        for name, layer in loaded.named_modules()
        if isinstance(layer, LoraLayer)
    }
    assert expected
    plan = plan_of(tmp_path, spec)
    assert {name: (m.rank, m.scale) for name, m in plan.modules.items()} == expected
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    used = {name for module in plan.modules.values() for name in (module.a_name, module.b_name)}
    assert used == set(tensors)


def test_an_activated_lora_begins_within_the_vocabulary(adapter: Path, spec: ModelSpec) -> None:
    """The embedding of a token that does not exist cannot be asked for: it would never begin."""
    set_config(adapter, alora_invocation_tokens=[spec.vocab_size - 1, 0])
    assert plan_of(adapter, spec).invocation == (spec.vocab_size - 1, 0)
    set_config(adapter, alora_invocation_tokens=[1, spec.vocab_size])
    _, problems = try_plan(adapter, spec)
    assert [(p.code, p.where, p.found) for p in problems] == [
        ("wrong_invocation", "alora_invocation_tokens", str(spec.vocab_size))
    ]


@pytest.mark.case("C06")
def test_targets_are_derived_from_the_tensors(adapter: Path, spec: ModelSpec) -> None:
    set_config(adapter, target_modules=None)
    assert len(plan_of(adapter, spec).modules) == 6


def set_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


PREFIX = "base_model.model."
Q0 = f"{PREFIX}model.layers.0.self_attn.q_proj"


@pytest.mark.case("C34")
def test_the_default_adapters_name_in_a_key_is_dropped(adapter: Path, spec: ModelSpec) -> None:
    edit(adapter, lambda t: {k.replace(".weight", ".default.weight"): v for k, v in t.items()})
    plan = plan_of(adapter, spec)
    assert plan.modules["model.layers.0.self_attn.q_proj"].a_name.endswith("lora_A.default.weight")


def put(name: str, *shape: int) -> Any:
    return lambda tensors: tensors.update({name: torch.ones(*shape)})


def drop(part: str) -> Any:
    return lambda tensors: {k: v for k, v in tensors.items() if part not in k}


def rename(old: str, new: str) -> Any:
    return lambda tensors: {k.replace(old, new): v for k, v in tensors.items()}


def replace(name: str, value: Any) -> Any:
    return lambda tensors: tensors.update({name: value(tensors[name])})


MISFITS: dict[str, tuple[Any, str]] = {
    "C34 both spellings": (put(f"{Q0}.lora_A.default.weight", 8, 64), "duplicate_tensor"),
    "C34 no prefix": (rename(PREFIX, ""), "unknown_tensor"),
    "C34 foreign names": (rename("lora_A", "lora_down"), "unknown_tensor"),
    "C36 other wrapper": (rename("model.layers", "language_model.layers"), "unknown_module"),
    "C38 no B at all": (drop("lora_B"), "half_pair"),
    "C38 one B missing": (drop("0.self_attn.q_proj.lora_B"), "half_pair"),
    "C38 one A missing": (drop("0.self_attn.q_proj.lora_A"), "half_pair"),
    "C38 ranks differ": (
        replace(f"{Q0}.lora_B.weight", lambda t: t[:, :4].clone()),
        "rank_mismatch",
    ),
    "C43 rank of both": (
        lambda t: {k: (v[:4] if "lora_A" in k else v[:, :4]).clone() for k, v in t.items()},
        "rank_mismatch",
    ),
    "C41 empty tensor": (replace(f"{Q0}.lora_A.weight", lambda t: torch.empty(0)), "empty_tensor"),
    "C41 no rows": (replace(f"{Q0}.lora_A.weight", lambda t: torch.empty(0, 64)), "empty_tensor"),
    "C41 flat": (replace(f"{Q0}.lora_A.weight", lambda t: t.flatten()), "wrong_shape"),
    "C41 no tensors": (lambda t: {"x": torch.ones(1)} and t.clear(), "no_tensors"),
    "C31 other width": (replace(f"{Q0}.lora_A.weight", lambda t: t[:, :32].clone()), "wrong_shape"),
    "C31 more layers": (
        put(f"{PREFIX}model.layers.9.self_attn.q_proj.lora_A.weight", 8, 64),
        "unknown_module",
    ),
    "C16 a layer missing": (drop("layers.1."), "missing_module"),
    "surplus module": (
        lambda t: t.update(
            {
                f"{PREFIX}model.layers.0.mlp.up_proj.lora_A.weight": torch.ones(8, 64),
                f"{PREFIX}model.layers.0.mlp.up_proj.lora_B.weight": torch.ones(96, 8),
            }
        ),
        "untargeted_module",
    ),
    "C44 F64": (replace(f"{Q0}.lora_A.weight", lambda t: t.double()), "unsupported_dtype"),
    "C44 I8": (replace(f"{Q0}.lora_A.weight", lambda t: t.to(torch.int8)), "unsupported_dtype"),
    "C44 bool": (replace(f"{Q0}.lora_A.weight", lambda t: t > 0), "unsupported_dtype"),
    "C44 fp8": (
        replace(f"{Q0}.lora_A.weight", lambda t: t.to(torch.float8_e4m3fn)),
        "unsupported_dtype",
    ),
    "C11 magnitude": (put(f"{Q0}.lora_magnitude_vector", 64), "unsupported_use_dora"),
    "C19 head": (put(f"{PREFIX}lm_head.weight", 4, 64), "unsupported_modules_to_save"),
    "C19 norm": (put(f"{PREFIX}model.norm.weight", 64), "unsupported_modules_to_save"),
    "C20 bias": (put(f"{Q0}.base_layer.bias", 64), "unsupported_bias"),
    "C22 tokens": (
        put(f"{PREFIX}model.embed_tokens.token_adapter.trainable_tokens_delta", 2, 64),
        "unsupported_trainable_token_indices",
    ),
    "C24 embedding": (
        put(f"{PREFIX}model.embed_tokens.lora_embedding_A", 4, 259),
        "unsupported_embedding",
    ),
    "C24 head": (put(f"{PREFIX}lm_head.lora_A.weight", 4, 64), "unsupported_embedding"),
    "C24 base weight": (
        put(f"{PREFIX}lm_head.base_layer.weight", 4, 64),
        "unsupported_base_weight",
    ),
    "C51 more rows": (put(f"{PREFIX}lm_head.weight", 263, 64), "unsupported_modules_to_save"),
    "C51 fewer rows": (
        put(f"{PREFIX}model.embed_tokens.weight", 255, 64),
        "unsupported_modules_to_save",
    ),
    "C51 more rows beside LoRA": (
        put(f"{PREFIX}model.embed_tokens.base_layer.weight", 263, 64),
        "unsupported_base_weight",
    ),
    "C25 experts": (
        put(f"{PREFIX}model.layers.0.mlp.experts.base_layer.lora_A.weight", 6, 64),
        "unsupported_target_parameters",
    ),
    "C39 fused": (
        put(f"{PREFIX}model.layers.0.self_attn.qkv_proj.lora_A.weight", 8, 64),
        "unsupported_fused_module",
    ),
}


def misfits() -> Iterator[Any]:
    """A name may begin with the number of its case."""
    for name, values in MISFITS.items():
        first = name.split()[0]
        marks = [pytest.mark.case(first)] if first[1:].isdigit() else []
        yield pytest.param(*values, id=name, marks=marks)


@pytest.mark.parametrize(("change", "code"), list(misfits()))
def test_tensors_that_do_not_fit_are_refused(
    change: Any, code: str, adapter: Path, spec: ModelSpec
) -> None:
    """PEFT warns at most and answers with the base model in most of these."""
    _, problems = try_plan(edit(adapter, change), spec)
    assert code in codes(problems), problems


@pytest.mark.case("C32")
@pytest.mark.parametrize("rank_pattern", [{}, {"q_proj": 128}])
def test_a_rank_above_the_limit_is_refused_with_both(
    rank_pattern: dict[str, int], base: Path, spec: ModelSpec, tmp_path: Path
) -> None:
    r = 16 if rank_pattern else 65
    folder = make_adapter(tmp_path / "a", base, r=r, targets=("q_proj",), rank_pattern=rank_pattern)
    _, problems = try_plan(folder, spec)
    assert [(p.code, p.found) for p in problems] == [
        ("rank_too_high", str(128 if rank_pattern else 65))
    ]
    assert plan_of(folder, spec, max_rank=128).rank == (128 if rank_pattern else 65)


@pytest.mark.case("C32")
def test_rank_256_in_the_config_only_is_a_mismatch(adapter: Path, spec: ModelSpec) -> None:
    set_config(adapter, r=256)
    assert codes(try_plan(adapter, spec)[1]) == {"rank_mismatch"}


def test_a_report_stays_short(adapter: Path, spec: ModelSpec) -> None:
    extra = {f"x{number}": torch.ones(1) for number in range(300)}
    _, problems = try_plan(edit(adapter, lambda t: t.update(extra)), spec)
    assert len(problems) == 9 and problems[-1].message == "and 292 more of the same kind"


@pytest.mark.case("C15")
def test_a_pattern_that_covers_the_head_is_refused(adapter: Path, spec: ModelSpec) -> None:
    set_config(adapter, target_modules=r".*(q_proj|v_proj|lm_head)")
    assert codes(try_plan(adapter, spec)[1]) == {"unsupported_embedding"}


def test_the_digest_is_as_documented(adapter: Path) -> None:
    import hashlib

    config = (adapter / "adapter_config.json").read_bytes()
    weights = (adapter / "adapter_model.safetensors").read_bytes()
    expected = hashlib.sha256(len(config).to_bytes(8, "little") + config + weights).hexdigest()
    assert digest(config, adapter / "adapter_model.safetensors") == expected
    assert digest(config + b" ", adapter / "adapter_model.safetensors") != expected
