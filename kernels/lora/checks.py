"""What the LoRA ops, folded ones too, ask of their arguments. ValueError: expected and got."""

import torch

from kernels.contract import FLOATS, expect, expect_device, expect_dtype, expect_shape
from kernels.lora.batch import LoraBatch, LoraWeights, sizes_of
from kernels.lora.shrunk import Shrunk
from kernels.lora.table import MAX_MIXED_TOKENS


def serving_dtypes(weights: LoraWeights) -> tuple[torch.dtype, ...]:
    """What tokens may be in: the dtype of the rows, or any that holds every fp8 value."""
    return FLOATS if weights.row_scales is not None else (weights.a.dtype,)


def check_x(x: torch.Tensor, weights: LoraWeights, batch: LoraBatch) -> None:
    expect_shape("x", x, (batch.token_slot.shape[0], weights.a.shape[3]))
    expect_dtype("x", x, *serving_dtypes(weights))
    expect_device("x", x, weights.a.device)
    expect(x.stride(1) == 1, "x's last stride", 1, x.stride(1))
    _check_batch(weights, batch)


def check_y(y: torch.Tensor, weights: LoraWeights, batch: LoraBatch) -> None:
    expect_shape("y", y, (batch.token_slot.shape[0], weights.b.shape[2]))
    expect_dtype("y", y, *serving_dtypes(weights))
    expect_device("y", y, weights.b.device)
    expect(y.stride(1) == 1, "y's last stride", 1, y.stride(1))


def check_h(h: Shrunk, weights: LoraWeights, batch: LoraBatch) -> None:
    """That it was shrunk for this group, and for a batch of this one's shapes."""
    _check_batch(weights, batch)
    expect(h.column == weights.column, "h's group", f"column {weights.column}", h.column)
    num_tokens, num_slices = batch.token_slot.shape[0], len(weights.slice_sizes)
    num_rows, num_places = batch.page_table.shape[1] * weights.b.shape[1], num_tokens
    if batch.dense is not None:
        num_rows = batch.dense.rows[weights.column].b_rows.shape[2]
        num_places = batch.dense.source.shape[0]
    expect_shape("h", h.shares, ("P", num_places, num_slices, num_rows))
    expect_dtype("h", h.shares, torch.float32, *serving_dtypes(weights))
    expect_device("h", h.shares, weights.b.device)
    if h.listed is not None:
        sizes = batch.plan.sizes if batch.plan else sizes_of(batch, weights.b.shape[1])
        shape = (sizes.num_tiles, num_slices, sizes.block_tokens, sizes.max_rows)
        expect_shape("h listed", h.listed, shape)
        expect_dtype("h listed", h.listed, *serving_dtypes(weights))
        expect_device("h listed", h.listed, weights.b.device)
    is_listed = h.shares.is_cuda and num_tokens <= MAX_MIXED_TOKENS
    expect((h.listed is not None) == is_listed, "h listed", is_listed, h.listed is not None)
    if h.shares.is_cuda and not is_listed:
        expect(h.shares.shape[0] == 1, "shares of h unlisted", 1, h.shares.shape[0])


def _check_batch(weights: LoraWeights, batch: LoraBatch) -> None:
    """That the batch is of the pool that the group lies in, and what is bound to it too."""
    expect_device("scales", batch.scales, weights.a.device)
    expect_shape("page_owner", batch.page_owner, (weights.a.shape[0],))
    last, num_columns = weights.column + weights.a.shape[1], batch.scales.shape[1]
    expect(last <= num_columns, "columns of scales", f"at least {last}", num_columns)
    if batch.plan is not None:
        planned, rows_per_page = batch.plan.sizes.rows_per_page, weights.a.shape[2]
        expect(planned == rows_per_page, "rows of a page in the plan", rows_per_page, planned)
    if batch.dense is not None:
        is_bound = weights.column in batch.dense.rows
        expect(is_bound, "groups bound to the batch", f"column {weights.column}", "others")


def check_base(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, weights: LoraWeights
) -> None:
    """Of the base projection that the adapters' group belongs to."""
    num_columns = weights.b.shape[2]
    expect_shape("weight", weight, (num_columns, weights.a.shape[3]))
    named = [("weight", weight)]
    if bias is not None:
        expect_shape("bias", bias, (num_columns,))
        named.append(("bias", bias))
    for name, tensor in named:
        expect_dtype(name, tensor, x.dtype)
        expect_device(name, tensor, x.device)
