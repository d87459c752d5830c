"""A reader of safetensors headers: as strict as the library, in bounded time and memory.

Layout (safetensors README): u64 little-endian header length, that many bytes of JSON, then the
tensors' bytes without hole, overlap or rest.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from inference.adapter_format.problem import FormatError, Problem, clipped

# An adapter for a 128-layer model with seven projections has about 1,800 tensors, 300 kB of header.
MAX_HEADER_BYTES = 2 << 20
MAX_TENSORS = 1 << 14
MAX_NAME_CHARS = 512

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "F64": 8, "I64": 8, "U64": 8, "C64": 8,
}  # fmt: skip
_FILE = "adapter_model.safetensors"
_PICKLE_STARTS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")


@dataclass(frozen=True)
class TensorInfo:
    """dtype: safetensors' name. start, end: bytes from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: str | Path) -> dict[str, TensorInfo]:
    """The tensors of the file by name, in the file's order. Raises FormatError; reads no tensor."""
    with Path(path).open("rb") as file:
        return parse_header(*read_raw_header(file))


def read_raw_header(file: BinaryIO) -> tuple[bytes, int]:
    """The file's bytes before its first tensor, and its size. Raises FormatError."""
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    return prefix + file.read(_header_length(prefix, size)), size


def parse_header(raw: bytes, size: int) -> dict[str, TensorInfo]:
    """As read_header; raw and size as read_raw_header returns them."""
    length = len(raw) - 8
    entries = _decode(raw[8:])
    _check_metadata(entries.pop("__metadata__", None))
    if len(entries) > MAX_TENSORS:
        raise _corrupt(f"more than {MAX_TENSORS} tensors", f"{len(entries)} tensors")
    tensors = {name: _tensor(name, value, 8 + length) for name, value in entries.items()}
    _check_layout(tensors, 8 + length, size)
    return dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)))


def _corrupt(message: str, found: object = "", where: str = _FILE) -> FormatError:
    text = f"corrupt safetensors file: {message}"
    return FormatError([Problem("corrupt_safetensors", text, clipped(where), found=clipped(found))])


def _header_length(prefix: bytes, size: int) -> int:
    if len(prefix) < 8:
        raise _corrupt("shorter than its length field", f"{size} bytes")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES and prefix.startswith(_PICKLE_STARTS):
        # Only then: 640 is a legal header length and begins with the bytes of a pickle.
        message = "this is a pickle or PyTorch file, which is never opened: convert to safetensors"
        raise FormatError([Problem("pickle", message, _FILE, "safetensors")])
    if length > MAX_HEADER_BYTES:
        raise _corrupt(f"a header longer than {MAX_HEADER_BYTES} bytes", f"{length} bytes")
    if 8 + length > size:
        raise _corrupt("cut off inside the header", f"{size} of at least {8 + length} bytes")
    return length


def _decode(raw: bytes) -> dict[str, object]:
    if not raw.startswith(b"{"):
        raise _corrupt("the header does not begin with an object", raw[:16])
    try:
        value = json.loads(
            raw.decode(), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise _corrupt("the header is not valid JSON", error) from None
    entries: dict[str, object] = value
    return entries


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the name {clipped(key)!r} stands twice")
        if len(key) > MAX_NAME_CHARS:
            raise ValueError(f"a name longer than {MAX_NAME_CHARS} characters")
        # A lone surrogate is legal for Python's json and for no one else.
        key.encode()
        found[key] = value
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _check_metadata(metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _corrupt("__metadata__ is not an object of strings", metadata)


def _tensor(name: str, value: object, data_start: int) -> TensorInfo:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise _corrupt("a tensor needs dtype, shape and data_offsets", value, name)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _corrupt("unknown dtype", dtype, name)
    if not _are_sizes(shape) or len(shape) > 8:
        raise _corrupt("a shape of up to 8 whole numbers is needed", shape, name)
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _corrupt("two ascending data_offsets are needed", offsets, name)
    num_bytes = ITEM_BYTES[dtype]
    for side in shape:
        num_bytes *= side
    if num_bytes != offsets[1] - offsets[0]:
        raise _corrupt(f"shape and dtype need {num_bytes} bytes", offsets, name)
    return TensorInfo(dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1])


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in value)


def _check_layout(tensors: dict[str, TensorInfo], data_start: int, size: int) -> None:
    at = data_start
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != at:
            kind = "overlaps the one before" if info.start < at else "leaves a hole before it"
            raise _corrupt(f"the tensor {kind}", f"starts at {info.start}, expected {at}", name)
        at = info.end
    if at != size:
        kind = "cut off" if size < at else "bytes after the last tensor"
        raise _corrupt(kind, f"{size} bytes, expected {at}")
