"""PEFT's two files → rank pages in one pass: what is packed are the very bytes that are hashed."""

import math
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch

from inference.adapter_format import (
    AdapterPlan,
    FormatError,
    Problem,
    TensorInfo,
    begun_digest,
    match_tensors,
    parse_config,
    parse_header,
    read_raw_header,
)
from inference.lora import ROWS_PER_PAGE, Group, PageLayout
from inference.model_spec import ModelSpec
from inference.page_file import Contents

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


@dataclass(frozen=True)
class AdapterFiles:
    """The open files of an adapter that can be served. raw_header: the weights before any tensor.

    tensors: in the file's order. close() it.
    """

    config: bytes
    raw_header: bytes
    tensors: dict[str, TensorInfo]
    plan: AdapterPlan
    weights: BinaryIO

    @property
    def rank(self) -> int:
        return self.plan.rank

    def close(self) -> None:
        self.weights.close()


class Place(NamedTuple):
    """Where a tensor belongs: slice number of the group; half "A" or "B"."""

    group: Group
    number: int
    half: str


def open_files(folder: Path, spec: ModelSpec, max_rank: int) -> AdapterFiles:
    """Raises FormatError with every problem, or OSError."""
    raw_config = (folder / CONFIG_NAME).read_bytes()
    config, problems, _ = parse_config(raw_config)
    if config is None:
        raise FormatError(problems)
    with ExitStack() as unless_kept:
        weights = unless_kept.enter_context((folder / WEIGHTS_NAME).open("rb"))
        raw_header, size = read_raw_header(weights)
        tensors = parse_header(raw_header, size)
        plan, problems, _ = match_tensors(config, tensors, spec, max_rank)
        if plan is None:
            raise FormatError(problems)
        unless_kept.pop_all()
    return AdapterFiles(raw_config, raw_header, tensors, plan, weights)


def pack(
    files: AdapterFiles, layout: PageLayout, spans: Sequence[torch.Tensor], threads: Executor
) -> tuple[Contents, str]:
    """Fills the spans [n, page_elements], all pages of the adapter in order; what it is beside them
    and the digest of the bytes that were read. Raises FormatError for values that are not finite.
    """
    for span in spans:
        span.zero_()
    places = _places(files.plan, layout)
    hasher = begun_digest(files.config)
    hasher.update(files.raw_header)
    hashing: Future[None] | None = None
    for name, info in files.tensors.items():
        data = _read(files.weights, info.end - info.start)
        if hashing is not None:
            hashing.result()
        # Beside the packing of the same bytes.
        hashing = threads.submit(hasher.update, data)
        tensor = torch.frombuffer(data, dtype=DTYPES[info.dtype]).view(info.shape)
        _put(_finite(tensor, name, spans[0].dtype), places[name], spans)
    if hashing is not None:
        hashing.result()
    return _contents(files, layout), hasher.hexdigest()


def _places(plan: AdapterPlan, layout: PageLayout) -> dict[str, Place]:
    places = {}
    for group in layout.groups:
        for number, module in enumerate(group.modules):
            planned = plan.modules.get(module)
            if planned is not None:
                places[planned.a_name] = Place(group, number, "A")
                places[planned.b_name] = Place(group, number, "B")
    return places


def _read(file: BinaryIO, num_bytes: int) -> bytearray:
    data = bytearray(num_bytes)
    if file.readinto(data) != num_bytes:  # type: ignore[attr-defined]
        raise OSError("the file became shorter while it was read")
    return data


def _finite(tensor: torch.Tensor, name: str, dtype: torch.dtype) -> torch.Tensor:
    converted = tensor.to(dtype)
    # One pass where it settles the matter: a sum is finite only of finite values.
    is_finite = math.isfinite(converted.sum(dtype=torch.float32).item())
    if not is_finite and not bool(torch.isfinite(converted).all()):
        message = f"{name} has values that are not finite in {dtype}"
        raise FormatError([Problem("not_finite", message, name, "finite values", "NaN or Inf")])
    return converted


def _put(tensor: torch.Tensor, place: Place, spans: Sequence[torch.Tensor]) -> None:
    """Its rank rows to the pages, in order."""
    rows = tensor if place.half == "A" else tensor.T  # [R, N]
    first = 0
    for span in spans:
        a_pages, b_pages = place.group.views(span)
        if place.half == "A":
            pages = a_pages[:, place.number]
        else:
            pages = torch.split(b_pages, list(place.group.slice_sizes), dim=2)[place.number]
        for page in pages:
            part = rows[first : first + ROWS_PER_PAGE]
            page[: part.shape[0]] = part
            first += ROWS_PER_PAGE


def _contents(files: AdapterFiles, layout: PageLayout) -> Contents:
    scales = [0.0] * layout.num_columns
    changed = set()
    for index, group in enumerate(layout.groups):
        for number, module in enumerate(group.modules):
            planned = files.plan.modules.get(module)
            if planned is not None:
                scales[group.column + number] = planned.scale
                changed.add(index)
    config, invocation = files.config.decode(), files.plan.invocation
    return Contents(files.rank, tuple(scales), frozenset(changed), config, invocation)
