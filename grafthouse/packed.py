"""One file of what is uploaded, read piece by piece: an archive as it is, a folder as a tar.

The tar is never written anywhere. Of the same files it is the same bytes each time, so that an
upload which broke off goes on with them.
"""

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Piece = bytes | Path


@dataclass(frozen=True)
class Packed:
    """pieces: what follows what."""

    filename: str
    pieces: tuple[Piece, ...]

    @cached_property
    def num_bytes(self) -> int:
        return sum(map(_size, self.pieces))

    def read(self, start: int, num_bytes: int) -> bytes:
        """From start on; less than num_bytes at the end only."""
        found = bytearray()
        for piece in self.pieces:
            if len(found) < num_bytes and start < _size(piece):
                found += _read(piece, start, num_bytes - len(found))
            start = max(0, start - _size(piece))
        return bytes(found)


def pack(name: str, files: Mapping[str, Path]) -> Packed:
    """files: as upload.files_of finds them."""
    if archive := files.get("archive"):
        return Packed(archive.name, (archive,))
    pieces: list[Piece] = []
    for path in files.values():
        padding = -path.stat().st_size % tarfile.BLOCKSIZE
        pieces += [_header(path), path, bytes(padding)]
    return Packed(f"{name}.tar", (*pieces, bytes(2 * tarfile.BLOCKSIZE)))


def _header(path: Path) -> bytes:
    """Without the times and owners of this machine: they would make other bytes of it."""
    info = tarfile.TarInfo(path.name)
    info.size = path.stat().st_size
    return info.tobuf(tarfile.PAX_FORMAT)


def _size(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.stat().st_size


def _read(piece: Piece, start: int, num_bytes: int) -> bytes:
    if isinstance(piece, bytes):
        return piece[start : start + num_bytes]
    with piece.open("rb") as file:
        file.seek(start)
        return file.read(num_bytes)
