"""A compiled adapter as a file: its rank pages as they lie in memory, with proof of every byte.

Layout: MAGIC, the header's length (u64 LE) and sha256, the header (JSON), zeros up to a multiple of
ALIGN_BYTES, the pages. The header has the sha256 of every piece of a page, so reading and checking
go side by side on several threads; whoever knows the header's sha256 knows the whole file.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from typing import Any

MAGIC = b"GRAFTPG1"
ALIGN_BYTES = 4096
# Of one read and one hash: large for a disk, small enough that threads share an adapter evenly.
PIECE_BYTES = 4 << 20
MAX_HEADER_BYTES = 8 << 20
_PREFIX = struct.Struct("<8sQ32s")


class PageFileError(Exception):
    """The file is not what its name says: cut off, corrupt, or of another adapter or layout."""


@dataclass(frozen=True)
class Contents:
    """What an adapter is beside its pages. scales: by column; groups: indices of those it changes.

    config: the text of its adapter_config.json; invocation: what it says of activated LoRA.
    """

    rank: int
    scales: tuple[float, ...]
    groups: frozenset[int]
    config: str
    invocation: tuple[int, ...] = ()


@dataclass(frozen=True)
class PageHeader:
    """key: of the layout and all else that decides the bytes; digest: the adapter version's.

    pieces: sha256 of each piece, page by page.
    """

    key: str
    digest: str
    num_pages: int
    page_bytes: int
    contents: Contents
    pieces: tuple[str, ...]

    def encoded(self) -> bytes:
        contents = self.contents
        values = {
            "key": self.key,
            "digest": self.digest,
            "num_pages": self.num_pages,
            "page_bytes": self.page_bytes,
            "rank": contents.rank,
            "scales": contents.scales,
            "groups": sorted(contents.groups),
            "config": contents.config,
            "invocation": contents.invocation,
            "pieces": self.pieces,
        }
        return json.dumps(values).encode()

    @classmethod
    def decoded(cls, raw: bytes) -> "PageHeader":
        """Raises ValueError, KeyError or TypeError where fields are missing or of other types."""
        values: dict[str, Any] = json.loads(raw)
        contents = Contents(
            values["rank"],
            tuple(values["scales"]),
            frozenset(values["groups"]),
            values["config"],
            tuple(values["invocation"]),
        )
        pieces = tuple(values["pieces"])
        sizes = values["num_pages"], values["page_bytes"]
        return cls(values["key"], values["digest"], *sizes, contents, pieces)


@dataclass(frozen=True)
class PageFile:
    """root: sha256 of the header. start: where the pages begin, in bytes."""

    header: PageHeader
    root: bytes
    start: int


def write_pages(
    fd: int, header: PageHeader, rows: Sequence[memoryview], threads: Executor
) -> bytes:
    """Writes the whole file; header.pieces are filled in here. Returns the header's sha256.

    rows: the pages' bytes in order.
    """
    pieces = [row[start:end] for row in rows for start, end in _bounds(header.page_bytes)]
    digests = tuple(threads.map(lambda piece: hashlib.sha256(piece).hexdigest(), pieces))
    fields = header.key, header.digest, header.num_pages, header.page_bytes, header.contents
    raw = PageHeader(*fields, digests).encoded()
    root = hashlib.sha256(raw).digest()
    start = _data_start(len(raw))
    _write(fd, memoryview((_PREFIX.pack(MAGIC, len(raw), root) + raw).ljust(start, b"\0")))
    for row in rows:
        _write(fd, row)
    return root


def read_header(fd: int) -> PageFile:
    """Raises PageFileError unless the header is whole, and the file by its size."""
    prefix = os.pread(fd, _PREFIX.size, 0)
    if len(prefix) < _PREFIX.size:
        raise PageFileError("shorter than its prefix")
    magic, length, root = _PREFIX.unpack(prefix)
    if magic != MAGIC or length > MAX_HEADER_BYTES:
        raise PageFileError("not a file of pages, or of another version")
    raw = os.pread(fd, length, _PREFIX.size)
    if hashlib.sha256(raw).digest() != root:
        raise PageFileError("the header is corrupt")
    try:
        header = PageHeader.decoded(raw)
    except (ValueError, KeyError, TypeError) as error:
        raise PageFileError(f"not a header of this version: {error}") from error
    start = _data_start(length)
    expected = start + header.num_pages * header.page_bytes
    if (size := os.fstat(fd).st_size) != expected:
        raise PageFileError(f"{size} bytes, expected {expected}")
    if len(header.pieces) != header.num_pages * len(list(_bounds(header.page_bytes))):
        raise PageFileError("a header of another number of pieces")
    return PageFile(header, root, start)


def read_pages(fd: int, file: PageFile, rows: Sequence[memoryview], threads: Executor) -> None:
    """Reads every page to its row and checks it there. Raises PageFileError, OSError; the rows hold
    anything then, but nothing writes to them any more.
    """
    header = file.header
    pieces = [
        (file.start + page * header.page_bytes + first, rows[page][first:end])
        for page in range(header.num_pages)
        for first, end in _bounds(header.page_bytes)
    ]

    def is_right(place: int, target: memoryview, digest: str) -> bool:
        _read(fd, place, target)
        return hashlib.sha256(target).hexdigest() == digest

    checks = [
        threads.submit(is_right, *piece, digest)
        for piece, digest in zip(pieces, header.pieces, strict=True)
    ]
    wait(checks)
    if not all(check.result() for check in checks):
        raise PageFileError("a page is corrupt")


def _bounds(page_bytes: int) -> Iterator[tuple[int, int]]:
    for start in range(0, page_bytes, PIECE_BYTES):
        yield start, min(start + PIECE_BYTES, page_bytes)


def _data_start(header_bytes: int) -> int:
    return -(-(_PREFIX.size + header_bytes) // ALIGN_BYTES) * ALIGN_BYTES


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _read(fd: int, place: int, target: memoryview) -> None:
    while target:
        num_read = os.preadv(fd, [target], place)
        if not num_read:
            raise PageFileError("cut off while it was read")
        place, target = place + num_read, target[num_read:]
