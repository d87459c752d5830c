"""A tar or tar.gz, read once from front to back within limits; nothing is sought, nothing held.

What tarfile would skip over silently (a broken header, a sparse map) refuses the archive here.
"""

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from adapters.validation.members import (
    MAX_MEMBERS,
    MAX_NAME_CHARS,
    MAX_RATIO,
    OPTIONAL,
    WANTED,
    SeenNames,
    about,
    choose,
    name_hazards,
    refused,
    too_many_members,
    write_bounded,
)
from inference.adapter_format import FormatError, Problem

# Of a member's extended header: names, owners, times.
MAX_HEADER_BYTES = 1 << 16
# Headers, padding, and the files that are dropped when they are small.
OVERHEAD_BYTES = 16 << 20

_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
_EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_BROKEN = (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError, ValueError, RecursionError)


class _BoundedStream:
    """What comes out of the file, or out of its compression, counted."""

    def __init__(self, source: IO[bytes], max_bytes: int, archive_bytes: int) -> None:
        self._source = source
        self._max_bytes = max_bytes
        self._max_expanded = MAX_RATIO * max(archive_bytes, 1024)
        self._num_bytes = 0

    def read(self, size: int) -> bytes:
        chunk = self._source.read(size)
        self._num_bytes += len(chunk)
        if self._num_bytes > self._max_expanded:
            raise refused("archive_bomb", f"expands more than {MAX_RATIO} times")
        if self._num_bytes > self._max_bytes:
            raise refused("archive_too_large", f"expands beyond {self._max_bytes} bytes")
        return chunk


class _StrictInfo(tarfile.TarInfo):
    """tarfile reads an extended header into memory and takes a broken one for the end."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> "_StrictInfo":
        try:
            return super().fromtarfile(tar)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise refused("broken_archive", f"the tar cannot be read: {error}") from None

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.type in _EXTENDED and self.size > MAX_HEADER_BYTES:
            message = f"a header of {self.size} bytes; at most {MAX_HEADER_BYTES} are read"
            raise refused("archive_too_large", message)
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _sparse(self.name)
        return super()._proc_member(tar)  # type: ignore[misc]

    def _proc_gnusparse_10(self, following: tarfile.TarInfo, *rest: Any) -> None:
        # Its map is as long as it says.
        raise _sparse(following.name)


def _sparse(name: str) -> FormatError:
    return FormatError([about(name, "special_member", "sparse; only regular files are read")])


def untar(archive: Path, folder: Path, max_bytes: int, is_gzip: bool) -> list[Problem]:
    """As archive.unpack."""
    archive_bytes = archive.stat().st_size
    try:
        with archive.open("rb") as file:
            plain: Any = gzip.GzipFile(fileobj=file) if is_gzip else file
            stream: Any = _BoundedStream(plain, max_bytes + OVERHEAD_BYTES, archive_bytes)
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_StrictInfo) as opened:
                names, problems = _extract(opened, folder, max_bytes)
    except _BROKEN as error:
        raise refused("broken_archive", f"the tar cannot be read: {str(error)[:120]}") from None
    if problems:
        raise FormatError(problems)
    chosen, warnings = choose(names)
    for name in OPTIONAL:
        if name in chosen:
            (folder / _spare(names.index(chosen[name]))).rename(folder / name)
    for spare in folder.glob(_spare("*")):
        spare.unlink()
    return warnings


def _spare(number: int | str) -> str:
    """Where an optional file waits until it is known where the config lies."""
    return f"member.{number}"


def _extract(
    opened: tarfile.TarFile, folder: Path, max_bytes: int
) -> tuple[list[str], list[Problem]]:
    """The files' names, and all hazards; nothing is written any more after the first."""
    names: list[str] = []
    problems: list[Problem] = []
    seen = SeenNames()
    for num_before, member in enumerate(opened):
        if num_before == MAX_MEMBERS:
            return names, [*problems, too_many_members()]
        problems += [about(member.name, code, message) for code, message in _hazards(member)]
        if clash := seen.add(member.name):
            problems.append(clash)
        if not problems and member.isreg():
            max_bytes -= _write_if_wanted(opened, member, names, folder, max_bytes)
        if member.isreg():
            names.append(member.name)
    return names, problems


def _hazards(member: tarfile.TarInfo) -> Iterator[tuple[str, str]]:
    yield from name_hazards(member.name)
    if member.issparse():
        raise _sparse(member.name)
    if member.type not in (*_REGULAR, tarfile.DIRTYPE):
        yield "special_member", "a link, device or special file; only regular files are read"
    if member.mode & 0o6000 and member.type != tarfile.DIRTYPE:
        yield "special_member", "with setuid or setgid"


def _write_if_wanted(
    opened: tarfile.TarFile, member: tarfile.TarInfo, before: list[str], folder: Path, left: int
) -> int:
    """Bytes written. The second of one name is choose()'s to refuse: it stays unwritten."""
    name = member.name.rpartition("/")[2]
    source = opened.extractfile(member)
    if source is not None and name in OPTIONAL:
        return write_bounded(source, folder / _spare(len(before)), left, name)
    if name not in WANTED or source is None:
        return 0
    if any(one.rpartition("/")[2] == name for one in before):
        return 0
    return write_bounded(source, folder / name, left, member.name[:MAX_NAME_CHARS])
