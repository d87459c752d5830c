"""The fields of adapter_config.json that ask for what is not served, each refused by its name."""

from collections.abc import Callable

from inference.adapter_format.fields import Fields, is_inactive
from inference.adapter_format.invocation import INVOCATION_TEXTS, check_text
from inference.adapter_format.problem import clipped

SUPPORTED = "a causal-LM LoRA on q, k, v, o, gate, up and down projections"

# Active value → the method it asks for.
_METHODS = {
    "use_dora": "DoRA",
    "lora_bias": "a bias in LoRA's B",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "modules_to_save": "fully trained modules",
    "trainable_token_indices": "trained token embeddings",
    "target_parameters": "LoRA on bare parameters",
    "layer_replication": "replicated layers",
    "megatron_config": "Megatron layers",
    "arrow_config": "Arrow routing",
    "kasa_config": "KaSA",
    "monteclora_config": "Monte Carlo LoRA",
    "velora_config": "VeLoRA",
}
# Of training or of loading only: an active value changes no answer.
_IGNORED = frozenset(
    {
        "auto_mapping",
        "corda_config",
        "enable_lora",
        "ensure_weight_tying",
        "eva_config",
        "fan_in_fan_out",
        "loftq_config",
        "lora_ga_config",
        "megatron_core",
        "merge_weights",
        "qalora_group_size",
        "revision",
        "runtime_config",
    }
)
_READ = frozenset(
    {
        "alora_invocation_tokens",
        "alpha_pattern",
        "base_model_name_or_path",
        "bias",
        "exclude_modules",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_dropout",
        "peft_type",
        "peft_version",
        "r",
        "rank_pattern",
        "target_modules",
        "task_type",
        "use_rslora",
    }
)
_USUAL = {"megatron_core": "megatron.core", "qalora_group_size": 16}

_BASE_CHANGING = ("pissa", "corda", "olora", "loftq", "lora_ga")
_PLAIN_INITS = frozenset({"gaussian", "eva", "orthogonal", "true", "false"})


def check_unsupported(fields: Fields) -> None:
    """Adds a problem or warning for every field that is not simply read by `parse_config`."""
    _check_method(fields)
    for name, value in fields.values.items():
        if name in _CHECKS:
            _CHECKS[name](fields, value)
        elif name in INVOCATION_TEXTS:
            check_text(fields, name, value)
        elif name in _METHODS:
            _check_inactive(fields, name, value)
        elif name in _IGNORED:
            _note_ignored(fields, name, value)
        elif name not in _READ:
            _check_unknown(fields, name, value)


def _check_method(fields: Fields) -> None:
    peft_type = fields.values.get("peft_type")
    if peft_type != "LORA":
        message = f"peft_type: only LORA is served, which means {SUPPORTED}"
        fields.refuse("unsupported_peft_type", message, "peft_type", "LORA", peft_type)
    task_type = fields.values.get("task_type")
    if task_type not in (None, "CAUSAL_LM"):
        message = "task_type: only causal language models are served"
        fields.refuse("unsupported_task_type", message, "task_type", "CAUSAL_LM or null", task_type)


def _check_inactive(fields: Fields, name: str, value: object) -> None:
    if not is_inactive(value):
        message = f"{name}: {_METHODS[name]} is not supported; served is {SUPPORTED}"
        fields.refuse(f"unsupported_{name}", message, name, "null or false", value)


def _note_ignored(fields: Fields, name: str, value: object) -> None:
    if not is_inactive(value) and value != _USUAL.get(name):
        fields.warn("ignored_field", f"{name} has no effect when serving", name, value)


def _check_unknown(fields: Fields, name: str, value: object) -> None:
    where = clipped(name, 80)
    if is_inactive(value):
        fields.warn("unknown_field", f"{where} is not known and inactive: ignored", where, value)
        return
    message = f"{where} is unknown and active: it could change the answers; remove it if not"
    fields.refuse("unknown_active_field", message, where, "a field of PEFT's LoRA config", value)


def _check_bias(fields: Fields, value: object) -> None:
    if value is None:
        fields.warn("null_field", "bias is null: read as none", "bias")
    elif value != "none":
        message = "bias: trained biases are not supported"
        fields.refuse("unsupported_bias", message, "bias", "none", value)


def _check_init(fields: Fields, value: object) -> None:
    if value is None or isinstance(value, bool):
        return
    name = value.lower() if isinstance(value, str) else ""
    message = "init_lora_weights: not known; it may change the base model"
    if name.startswith(_BASE_CHANGING):
        message = (
            f"init_lora_weights: {name[:40]} trains against a changed base model; convert it with "
            "PEFT's save_pretrained(path_initial_model_for_weight_conversion=…)"
        )
    elif name in _PLAIN_INITS:
        return
    expected = "true, false, gaussian, orthogonal or eva"
    fields.refuse("unsupported_init_lora_weights", message, "init_lora_weights", expected, value)


def _check_dropout(fields: Fields, value: object) -> None:
    if value is None:
        fields.warn("null_field", "lora_dropout is null: read as 0", "lora_dropout")
    elif fields.as_alpha("lora_dropout", value):
        _note_ignored(fields, "lora_dropout", value)


_CHECKS: dict[str, Callable[[Fields, object], None]] = {
    "bias": _check_bias,
    "init_lora_weights": _check_init,
    "lora_dropout": _check_dropout,
}
