"""adapter_config.json by itself: PEFT's defaults, and what is refused by its name."""

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.adapter_format import AdapterConfig, Problem, find_invocation, parse_config

GOOD = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 8,
    "lora_alpha": 16,
    "target_modules": ["q_proj", "v_proj"],
}


def config_of(**changes: Any) -> AdapterConfig:
    config, problems, _ = parse_config(json.dumps(GOOD | changes).encode())
    assert config is not None, problems
    return config


def refusals(**changes: Any) -> list[Problem]:
    config, problems, _ = parse_config(json.dumps(GOOD | changes).encode())
    assert config is None
    return problems


def codes(problems: list[Problem]) -> set[str]:
    return {problem.code for problem in problems}


@pytest.mark.case("C01")
def test_rslora_divides_by_the_root_of_the_modules_own_rank() -> None:
    config = config_of(r=64, lora_alpha=16, use_rslora=True, rank_pattern={"v_proj": 4})
    assert config.scale_of("model.layers.0.self_attn.q_proj") == 2.0
    assert config.scale_of("model.layers.0.self_attn.v_proj") == 8.0
    assert config_of(r=64, lora_alpha=16, use_rslora=None).scale_of("x") == 0.25


@pytest.mark.case("C04")
@pytest.mark.parametrize("alpha", [22.627416997969522, 12.5, 1e9])
def test_alpha_is_a_float(alpha: float) -> None:
    assert config_of(lora_alpha=alpha).scale_of("x") == alpha / 8


@pytest.mark.case("C04")
def test_alpha_zero_is_accepted_and_said_to_have_no_effect() -> None:
    config, problems, warnings = parse_config(json.dumps(GOOD | {"lora_alpha": 0}).encode())
    assert config is not None and not problems
    assert "no_effect" in codes(warnings)


@pytest.mark.case("C04")
@pytest.mark.parametrize(
    "raw", ["1e999", "NaN", "-Infinity", '"16"', "true", "[]", "1" + "0" * 400]
)
def test_alpha_that_is_no_finite_number_is_refused(raw: str) -> None:
    text = json.dumps(GOOD).replace('"lora_alpha": 16', f'"lora_alpha": {raw}')
    config, problems, _ = parse_config(text.encode())
    assert config is None and problems


@pytest.mark.case("C06")
@pytest.mark.parametrize("name", ["r", "lora_alpha", "peft_type"])
def test_null_in_a_required_field_is_refused_by_name(name: str) -> None:
    assert [problem.where for problem in refusals(**{name: None})] == [name]


@pytest.mark.case("C06")
@pytest.mark.parametrize(
    "name",
    [
        "rank_pattern",
        "alpha_pattern",
        "bias",
        "use_rslora",
        "use_dora",
        "modules_to_save",
        "layers_to_transform",
        "lora_dropout",
        "target_modules",
        "exclude_modules",
    ],
)
def test_null_in_an_optional_field_is_pefts_default(name: str) -> None:
    module = "model.layers.0.self_attn.q_proj"
    config = config_of(**{name: None})
    assert config.targets.covers(module)
    assert (config.rank_of(module), config.scale_of(module)) == (8, 2.0)


@pytest.mark.case("C08")
def test_unknown_inactive_fields_are_warned_of() -> None:
    extra = {
        "brand_new_option": None,
        "other_new": False,
        "enable_lora": None,
        "merge_weights": False,
        "inference_mode": False,
        "peft_version": "9.9.9",
    }
    config, problems, warnings = parse_config(json.dumps(GOOD | extra).encode())
    assert config == config_of() and not problems
    assert {warning.where for warning in warnings} == {"brand_new_option", "other_new"}


@pytest.mark.case("C08")
def test_unknown_active_fields_are_refused() -> None:
    assert codes(refusals(new_magic=0.5)) == {"unknown_active_field"}


@pytest.mark.case("C10")
@pytest.mark.case("C11")
@pytest.mark.case("C13")
@pytest.mark.case("C18")
@pytest.mark.case("C20")
@pytest.mark.case("C22")
@pytest.mark.case("C24")
@pytest.mark.case("C25")
@pytest.mark.case("C29")
@pytest.mark.case("C39")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("peft_type", kind) for kind in ("LOHA", "ADALORA", "IA3", "lora", "", 5, None)),
        *(("task_type", kind) for kind in ("SEQ_CLS", "TOKEN_CLS", "FEATURE_EXTRACTION")),
        ("use_dora", True),
        *(
            ("init_lora_weights", name)
            for name in [
                "pissa",
                "PiSSA",
                "pissa_niter_16",
                "olora",
                "corda",
                "loftq",
                "lora_ga",
                "brand_new",
            ]
        ),
        ("modules_to_save", ["lm_head", "embed_tokens"]),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("trainable_token_indices", [9, 3]),
        ("trainable_token_indices", {"embed_tokens": [9, 3]}),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("layer_replication", [[0, 2], [1, 3]]),
        ("megatron_config", {"x": 1}),
        ("alora_invocation_tokens", [1, -2]),
        ("alora_invocation_tokens", [True]),
        ("alora_invocation_tokens", [1.0]),
        ("alora_invocation_tokens", "<|check|>"),
        ("alora_invocation_tokens", 7),
        ("alora_invocation_tokens", [1] * 513),
        ("alora_invocation_string", "<|check|>"),
        ("invocation_string", "<|check|>"),
        ("use_qalora", True),
        ("use_bdlora", {"nblocks": 2}),
        ("target_modules", ["q_proj", "lm_head"]),
        ("target_modules", ["model.embed_tokens"]),
        ("target_modules", ["qkv_proj"]),
        ("target_modules", ["gate_up_proj"]),
        ("target_modules", []),
        ("target_modules", [["q_proj"]]),
        ("target_modules", 7),
        ("r", 0),
        ("r", -1),
        ("r", 8.0),
        ("r", True),
        ("r", 10**30),
        ("rank_pattern", {"q_proj": 0}),
        ("rank_pattern", [4]),
        ("alpha_pattern", {"q_proj": "x"}),
        ("use_rslora", "yes"),
        ("layers_to_transform", ["1"]),
        ("layers_to_transform", [-1]),
        ("layers_pattern", "(a+)+"),
        ("lora_dropout", "high"),
    ],
)
def test_what_is_not_served_is_refused_by_name(field: str, value: Any) -> None:
    problems = refusals(**{field: value})
    assert {problem.where.partition("[")[0] for problem in problems} == {field}
    assert all(field in problem.message for problem in problems)


@pytest.mark.parametrize("tokens", [None, []])
def test_without_invocation_tokens_an_adapter_applies_from_the_start(tokens: Any) -> None:
    assert config_of(alora_invocation_tokens=tokens).invocation == ()


def test_invocation_tokens_are_read_and_their_text_only_noted() -> None:
    """PEFT reads the tokens only; the text beside them is another trainer's."""
    fields = {"alora_invocation_tokens": [7, 0, 7], "invocation_string": "<|check|>"}
    config, problems, warnings = parse_config(json.dumps(GOOD | fields).encode())
    assert config is not None and not problems
    assert config.invocation == (7, 0, 7)
    assert [warning.where for warning in warnings] == ["invocation_string"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 1), max_size=3), st.lists(st.integers(0, 1), max_size=12))
def test_an_invocation_is_found_where_peft_finds_it(tokens: list[int], prompt: list[int]) -> None:
    import torch
    from peft import LoraConfig
    from peft.tuners.lora.variants import calculate_alora_offsets

    configs = {"x": LoraConfig(alora_invocation_tokens=tokens, task_type="CAUSAL_LM")}
    found = find_invocation(tokens, prompt)
    if not tokens:
        assert found == 0
        return
    (offset,) = calculate_alora_offsets(configs, "x", torch.tensor([prompt], dtype=torch.long))
    assert found == (None if offset is None else len(prompt) - offset)


@pytest.mark.case("C15")
def test_layers_beside_a_pattern_are_refused_as_in_peft() -> None:
    problems = refusals(target_modules=".*q_proj", layers_to_transform=[1])
    assert [problem.where for problem in problems] == ["layers_to_transform"]


@pytest.mark.case("C29")
def test_fields_that_name_modules_or_addresses_are_only_read() -> None:
    before = set(sys.modules)
    config = config_of(
        megatron_core="antigravity",
        auto_mapping={"base_model_class": "X", "parent_library": "antigravity"},
        base_model_name_or_path="http://169.254.169.254/latest",
        revision="--help",
    )
    assert config.base_model == "http://169.254.169.254/latest"
    assert set(sys.modules) == before


def test_all_reasons_are_told_at_once() -> None:
    problems = refusals(use_dora=True, bias="all", r=None, peft_type="LOHA")
    assert {problem.where for problem in problems} == {"use_dora", "bias", "r", "peft_type"}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe{}",
        b'{"r": 8, "r": 9}',
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b" " * (2 << 20),
        b'{"r": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    config, problems, _ = parse_config(raw)
    assert config is None and codes(problems) == {"invalid_config"}


@pytest.mark.case("C27")
def test_fan_in_fan_out_is_ignored_with_a_warning() -> None:
    config, problems, warnings = parse_config(json.dumps(GOOD | {"fan_in_fan_out": True}).encode())
    assert config == config_of() and not problems
    assert [warning.where for warning in warnings] == ["fan_in_fan_out"]


def test_scales_never_come_from_integer_division() -> None:
    assert config_of(r=7, lora_alpha=3).scale_of("x") == 3 / 7
    assert config_of(r=7, lora_alpha=3, use_rslora=True).scale_of("x") == 3 / math.sqrt(7)


FIELDS = (
    "peft_type task_type r lora_alpha target_modules use_rslora rank_pattern alpha_pattern bias "
    "layers_to_transform layers_pattern exclude_modules modules_to_save init_lora_weights use_dora "
    "lora_dropout base_model_name_or_path loftq_config fan_in_fan_out megatron_core new_field"
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.just("q_proj"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS.split()) | st.text(max_size=9), values, max_size=5))
def test_any_value_of_any_field_is_read_or_refused(changes: dict[str, Any]) -> None:
    config, problems, warnings = parse_config(json.dumps(GOOD | changes).encode())
    assert (config is None) == bool(problems)
    # A report is kept as JSON: PostgreSQL refuses a NUL in it, and pages show what is printable.
    texts = [text for one in (*problems, *warnings) for text in one.as_dict().values()]
    assert all(text.isprintable() for text in texts)
    if config is not None:
        module = "model.layers.0.self_attn.q_proj"
        assert config.rank_of(module) > 0 and math.isfinite(config.scale_of(module))
        assert config.targets.covers(module) in (True, False)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    config, problems, _ = parse_config(raw)
    assert (config is None) == bool(problems)
