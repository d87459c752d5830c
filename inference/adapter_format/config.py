"""What a LoRA configuration means for a module: targeted or not, its rank, its scale."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

_LAYER_INDEX = re.compile(r".*?\.([^.]*)\.(\d+)\.")


@dataclass(frozen=True)
class TargetRule:
    """Which modules are adapted: by suffix names, a full-match pattern, or all linear projections;
    with none of the three, whatever the tensors adapt. layers: only these, None for all;
    layer_parents: names of the lists that the layer numbers count, empty for any.
    """

    names: frozenset[str] | None = None
    pattern: re.Pattern[str] | None = None
    all_linear: bool = False
    excluded_names: frozenset[str] = frozenset()
    excluded_pattern: re.Pattern[str] | None = None
    layers: frozenset[int] | None = None
    layer_parents: frozenset[str] = frozenset()

    @property
    def is_derived(self) -> bool:
        return self.names is None and self.pattern is None and not self.all_linear

    def covers(self, module: str) -> bool:
        """Whether PEFT would adapt this module; a derived rule covers all that is not excluded."""
        if is_named(module, self.excluded_names):
            return False
        if self.excluded_pattern is not None and self.excluded_pattern.fullmatch(module):
            return False
        if self.pattern is not None:
            return self.pattern.fullmatch(module) is not None
        if self.names is not None and module in self.names:
            # A full path overrides layers_to_transform, in PEFT too.
            return True
        return (self.names is None or is_named(module, self.names)) and self._in_layers(module)

    def _in_layers(self, module: str) -> bool:
        if self.layers is None:
            return True
        match = _LAYER_INDEX.match(module)
        if match is None or (self.layer_parents and match[1] not in self.layer_parents):
            return False
        return int(match[2]) in self.layers


@dataclass(frozen=True)
class AdapterConfig:
    """A served LoRA configuration. Module paths are those of `ModelSpec.lora_modules`.

    rank_pattern, alpha_pattern: in the file's order, the first match wins, each for itself.
    base_model: what the trainer named, never opened or fetched.
    invocation: of an activated LoRA, the tokens from which on it applies; empty: from the start.
    """

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: tuple[tuple[re.Pattern[str], int], ...]
    alpha_pattern: tuple[tuple[re.Pattern[str], float], ...]
    targets: TargetRule
    base_model: str
    invocation: tuple[int, ...] = ()

    def rank_of(self, module: str) -> int:
        return next((r for pattern, r in self.rank_pattern if pattern.match(module)), self.rank)

    def alpha_of(self, module: str) -> float:
        return next((a for pattern, a in self.alpha_pattern if pattern.match(module)), self.alpha)

    def scale_of(self, module: str) -> float:
        """What B·A·x is multiplied by: alpha/r, with rsLoRA alpha/sqrt(r), of the module."""
        rank = self.rank_of(module)
        return self.alpha_of(module) / (math.sqrt(rank) if self.use_rslora else rank)


def is_named(module: str, names: Iterable[str]) -> bool:
    """Whether one of the names is the module's path or a dotted suffix of it."""
    return any(module == name or module.endswith(f".{name}") for name in names)
