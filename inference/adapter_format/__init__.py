"""Adapter files: what PEFT means by them, what is served, and why not. Free of torch and of Django.

The control plane validates uploads with it, the engine plans its loads with it:
one reading of the format.
"""

from inference.adapter_format.config import AdapterConfig, TargetRule
from inference.adapter_format.digest import begun_digest, digest
from inference.adapter_format.header import (
    ITEM_BYTES,
    TensorInfo,
    parse_header,
    read_header,
    read_raw_header,
)
from inference.adapter_format.invocation import find_invocation
from inference.adapter_format.match import AdapterPlan, ModulePlan, match_tensors
from inference.adapter_format.parse import MAX_CONFIG_BYTES, parse_config
from inference.adapter_format.problem import FormatError, Problem, clipped, shortened

__all__ = [
    "ITEM_BYTES",
    "MAX_CONFIG_BYTES",
    "AdapterConfig",
    "AdapterPlan",
    "FormatError",
    "ModulePlan",
    "Problem",
    "TargetRule",
    "TensorInfo",
    "begun_digest",
    "clipped",
    "digest",
    "find_invocation",
    "match_tensors",
    "parse_config",
    "parse_header",
    "read_header",
    "read_raw_header",
    "shortened",
]
