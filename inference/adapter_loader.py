"""From an adapter's folder to packed pages: read, verify, refuse with every reason, lay out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from inference.adapter_format import (
    AdapterPlan,
    FormatError,
    Problem,
    digest,
    match_tensors,
    parse_config,
    read_header,
)
from inference.errors import EngineError, ErrorCode
from inference.lora import ROWS_PER_PAGE, PackedAdapter, PageLayout, num_pages_for
from inference.model_spec import ModelSpec

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"


@dataclass(frozen=True)
class AdapterLoader:
    """How this engine packs: for its model, largest rank and dtype; pinned memory for a GPU."""

    spec: ModelSpec
    layout: PageLayout
    max_rank: int
    dtype: torch.dtype
    pin_memory: bool

    def digest_of(self, path: str) -> str:
        """The identity of the bytes below path. Raises INVALID_ADAPTER when unreadable."""
        folder = Path(path)
        try:
            return digest((folder / CONFIG_NAME).read_bytes(), folder / WEIGHTS_NAME)
        except OSError as error:
            raise _unreadable(path, error) from error

    def load(self, path: str, expected_digest: str) -> PackedAdapter:
        """Reads and packs. Raises EngineError INVALID_ADAPTER with every problem found."""
        folder = Path(path)
        try:
            if self.digest_of(path) != expected_digest:
                message = f"{path}: the files no longer have the digest {expected_digest}"
                raise EngineError(ErrorCode.INVALID_ADAPTER, message)
            return self._pack(folder, expected_digest)
        except FormatError as error:
            raise _invalid(path, error.problems) from error
        except (OSError, SafetensorError) as error:
            raise _unreadable(path, error) from error

    def _pack(self, folder: Path, name: str) -> PackedAdapter:
        plan = self._plan(folder)
        shape = (num_pages_for(plan.rank), self.layout.page_elements)
        pages = torch.zeros(shape, dtype=self.dtype, pin_memory=self.pin_memory)
        scales = torch.zeros(self.layout.num_columns)
        changed: set[int] = set()
        with safe_open(folder / WEIGHTS_NAME, framework="pt") as tensors:
            for index, group in enumerate(self.layout.groups):
                a_pages, b_pages = group.views(pages)
                b_slices = torch.split(b_pages, list(group.slice_sizes), dim=2)
                for number, module in enumerate(group.modules):
                    planned = plan.modules.get(module)
                    if planned is None:
                        continue
                    _put(a_pages[:, number], self._tensor(tensors, planned.a_name))
                    _put(b_slices[number], self._tensor(tensors, planned.b_name).T)
                    scales[group.column + number] = planned.scale
                    changed.add(index)
        return PackedAdapter(name, plan.rank, pages, scales, frozenset(changed))

    def _plan(self, folder: Path) -> AdapterPlan:
        config, problems, _ = parse_config((folder / CONFIG_NAME).read_bytes())
        if config is None:
            raise FormatError(problems)
        header = read_header(folder / WEIGHTS_NAME)
        plan, problems, _ = match_tensors(config, header, self.spec, self.max_rank)
        if plan is None:
            raise FormatError(problems)
        return plan

    def _tensor(self, tensors: Any, name: str) -> torch.Tensor:
        converted: torch.Tensor = tensors.get_tensor(name).to(self.dtype)
        if not bool(torch.isfinite(converted).all()):
            message = f"{name} has values that are not finite in {self.dtype}"
            raise FormatError([Problem("not_finite", message, name, "finite values", "NaN or Inf")])
        return converted


def _put(pages: torch.Tensor, rows: torch.Tensor) -> None:
    """rows [R, N] into pages [NP, PR, N], rank order."""
    for page in range(pages.shape[0]):
        part = rows[page * ROWS_PER_PAGE : (page + 1) * ROWS_PER_PAGE]
        pages[page, : part.shape[0]] = part


def _invalid(path: str, problems: list[Problem]) -> EngineError:
    reasons = "; ".join(f"{problem.where}: {problem.message}" for problem in problems)
    return EngineError(ErrorCode.INVALID_ADAPTER, f"{path}: {reasons}", "lora_path")


def _unreadable(path: str, error: Exception) -> EngineError:
    message = f"{path}: cannot read the adapter: {error}"
    return EngineError(ErrorCode.INVALID_ADAPTER, message, "lora_path")
