"""What a tensor that is no LoRA half of a served linear layer probably is, said to its owner."""

import re

from inference.adapter_format.problem import Problem, clipped

_EXPECTED = "base_model.model.<module>.lora_A.weight or .lora_B.weight"

# First match wins: (pattern, code, what it is).
_KINDS = tuple(
    (re.compile(pattern), code, message)
    for pattern, code, message in (
        (
            r"lora_magnitude_vector",
            "unsupported_use_dora",
            "a DoRA magnitude, not supported",
        ),
        (r"lora_embedding_[AB]", "unsupported_embedding", "LoRA on an embedding, not supported"),
        (
            r"trainable_tokens_delta",
            "unsupported_trainable_token_indices",
            "trained token embeddings, not supported",
        ),
        (r"(lm_head|embed_tokens)\.lora_", "unsupported_embedding", "LoRA on {0}, not supported"),
        (
            r"(qkv_proj|gate_up_proj)\.lora_",
            "unsupported_fused_module",
            "LoRA on the fused {0}, not supported: split it",
        ),
        (r"experts\..*lora_", "unsupported_target_parameters", "LoRA on experts, not supported"),
        (r"lora_[AB]\.bias$|\.bias$", "unsupported_bias", "a trained bias, not supported"),
        (r"lora_(down|up)\b", "unknown_tensor", "another trainer's spelling; convert it to PEFT's"),
        (r"\.base_layer\.weight$", "unsupported_base_weight", "a weight of the base model"),
    )
)
_UNPREFIXED = re.compile(r"(?!base_model\.model\.).*\.lora_[AB](\.default)?\.weight")
_LORA = re.compile(r"\.lora_[AB]\.")


def unknown_tensor(name: str) -> Problem:
    for pattern, code, message in _KINDS:
        if match := pattern.search(name):
            return _problem(code, message.format(*match.groups()), name)
    if _UNPREFIXED.fullmatch(name):
        return _problem("unknown_tensor", "without PEFT's prefix base_model.model.", name)
    if _LORA.search(name):
        message = "LoRA on a module that the base model does not have"
        return _problem("unknown_module", message, name)
    if name.endswith(".weight"):
        message = "a fully trained module, not supported"
        return _problem("unsupported_modules_to_save", message, name)
    return _problem("unknown_tensor", "not a tensor of a LoRA adapter", name)


def _problem(code: str, message: str, name: str) -> Problem:
    shown = clipped(name, 300)
    return Problem(code, f"{shown}: {message}", shown, _EXPECTED)
