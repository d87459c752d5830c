"""A zip, its directory judged whole before anything of it is opened."""

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from adapters.validation.members import (
    MAX_MEMBERS,
    MAX_RATIO,
    SeenNames,
    about,
    choose,
    name_hazards,
    refused,
    too_many_members,
    write_bounded,
)
from inference.adapter_format import FormatError, Problem

MAX_DIRECTORY_BYTES = 1 << 20

_END_RECORD = struct.Struct("<4sHHHHIIH")


def unzip(archive: Path, folder: Path, max_bytes: int) -> list[Problem]:
    """As archive.unpack."""
    _check_directory_size(archive)
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            if any(member.header_offset < 0 for member in members):
                # A directory that says it is longer than what stands before it; seeking there is
                # an OSError, which would look like a fault of our disk.
                raise zipfile.BadZipFile("a member lies before the file's beginning")
            problems = list(_hazards(members, archive.stat().st_size))
            if problems:
                raise FormatError(problems)
            chosen, warnings = choose(one.filename for one in members if not one.is_dir())
            for name, member in chosen.items():
                with opened.open(member) as source:
                    max_bytes -= write_bounded(source, folder / name, max_bytes, member)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error) as error:
        raise refused("broken_archive", f"the zip cannot be read: {str(error)[:120]}") from None
    return warnings


def _check_directory_size(archive: Path) -> None:
    """Before zipfile builds an object for each member, however many there are."""
    with archive.open("rb") as file:
        file.seek(max(0, archive.stat().st_size - (1 << 16) - _END_RECORD.size))
        tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END_RECORD.size > len(tail):
        message = "neither a zip nor a tar or tar.gz"
        raise refused("unknown_archive", message, expected="a zip, a tar or a tar.gz")
    if tail[max(0, at - 20) : at].startswith(b"PK\x06\x07"):
        # Its counts would override those looked at here; nothing below 4 GiB needs it.
        raise refused("archive_too_large", "ZIP64 is not read", expected="a zip below 4 GiB")
    num_members, directory_bytes = _END_RECORD.unpack_from(tail, at)[4:6]
    if num_members > MAX_MEMBERS or directory_bytes > MAX_DIRECTORY_BYTES:
        raise FormatError([too_many_members()])


def _hazards(members: list[zipfile.ZipInfo], archive_bytes: int) -> Iterator[Problem]:
    if len(members) > MAX_MEMBERS:
        yield too_many_members()
        return
    seen = SeenNames()
    for member in members:
        for code, message in _member_hazards(member):
            yield about(member.orig_filename, code, message)
        if clash := seen.add(member.filename):
            yield clash
    yield from _overlaps(members, archive_bytes)


def _member_hazards(member: zipfile.ZipInfo) -> Iterator[tuple[str, str]]:
    # zipfile cleans `filename`; what the client wrote is in orig_filename.
    name = member.orig_filename
    yield from name_hazards(name)
    if not name.isascii() and not member.flag_bits & 0x800:
        yield "unsafe_member_name", "not UTF-8"
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        yield "special_member", "a link or special file; only regular files are read"
    if (member.external_attr >> 16) & (stat.S_ISUID | stat.S_ISGID):
        yield "special_member", "with setuid or setgid"
    if member.flag_bits & 0x1:
        yield "encrypted_member", "encrypted"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        yield "unsupported_compression", "neither stored nor deflated"
    if member.file_size > MAX_RATIO * max(member.compress_size, 1024):
        yield "archive_bomb", f"expands more than {MAX_RATIO} times"


def _overlaps(members: list[zipfile.ZipInfo], archive_bytes: int) -> Iterator[Problem]:
    """One stream referenced many times makes a bomb that each member's ratio does not show."""
    ordered = sorted(members, key=lambda member: member.header_offset)
    starts = [member.header_offset for member in ordered]
    # An empty zip has no end either.
    for member, end in zip(ordered, [*starts[1:], archive_bytes], strict=False):
        if member.header_offset + 30 + member.compress_size > end:
            yield about(member.filename, "overlapping_members", "overlaps the next one")
