"""Takes the two files out of a zip, a tar or a tar.gz, and nothing else.

The bytes say which it is. Every hazard refuses the whole archive.
"""

from pathlib import Path

from adapters.validation.tarred import untar
from adapters.validation.zipped import unzip
from inference.adapter_format import Problem

_USTAR_AT = 257


def unpack(archive: Path, folder: Path, max_bytes: int) -> list[Problem]:
    """Writes the wanted files into folder; returns warnings. Raises FormatError.

    max_bytes: of all files written, counted while writing; of a tar, of all it holds.
    """
    with archive.open("rb") as file:
        head = file.read(512)
    is_gzip = head.startswith(b"\x1f\x8b")
    if is_gzip or head[_USTAR_AT:].startswith(b"ustar"):
        return untar(archive, folder, max_bytes, is_gzip)
    return unzip(archive, folder, max_bytes)
