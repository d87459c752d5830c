"""Takes the two files out of a zip, and nothing else. Every hazard refuses the whole archive."""

import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from inference.adapter_format import FormatError, Problem

MAX_MEMBERS = 256
MAX_DIRECTORY_BYTES = 1 << 20
MAX_NAME_CHARS = 255
# Trained weights hardly compress; a B of zeros does, but it is refused anyway.
MAX_RATIO = 100
WANTED = ("adapter_config.json", "adapter_model.safetensors")

_CHUNK_BYTES = 1 << 20
_END_RECORD = struct.Struct("<4sHHHHIIH")
_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_SHARD = re.compile(
    r"adapter_model-\d+-of-\d+\.safetensors|adapter_model\.safetensors\.index\.json"
)
_DRIVE = re.compile(r"[A-Za-z]:")


def unpack(archive: Path, folder: Path, max_bytes: int) -> list[Problem]:
    """Writes the wanted files into folder; returns warnings. Raises FormatError.

    max_bytes: of all files written, counted while writing.
    """
    _check_directory_size(archive)
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            problems = list(_hazards(members, archive.stat().st_size))
            if problems:
                raise FormatError(problems)
            chosen, warnings = _choose(members)
            for name, member in chosen.items():
                max_bytes -= _extract(opened, member, folder / name, max_bytes)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error) as error:
        raise _refused("broken_archive", f"the zip cannot be read: {str(error)[:120]}") from None
    return warnings


def _refused(code: str, message: str, where: str = "archive", expected: str = "") -> FormatError:
    return FormatError([Problem(code, f"archive: {message}", where[:200], expected)])


def _check_directory_size(archive: Path) -> None:
    """Before zipfile builds an object for each member, however many there are."""
    with archive.open("rb") as file:
        file.seek(max(0, archive.stat().st_size - (1 << 16) - _END_RECORD.size))
        tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END_RECORD.size > len(tail):
        raise _refused("not_a_zip", "not a zip file", expected="zip; tar and others are not read")
    if tail[max(0, at - 20) : at].startswith(b"PK\x06\x07"):
        # Its counts would override those looked at here; nothing below 4 GiB needs it.
        raise _refused("archive_too_large", "ZIP64 is not read", expected="a zip below 4 GiB")
    num_members, directory_bytes = _END_RECORD.unpack_from(tail, at)[4:6]
    if num_members > MAX_MEMBERS or directory_bytes > MAX_DIRECTORY_BYTES:
        message = f"more than {MAX_MEMBERS} members"
        raise _refused("archive_too_large", message, expected=f"at most {MAX_MEMBERS} members")


def _hazards(members: list[zipfile.ZipInfo], archive_bytes: int) -> Iterator[Problem]:
    if len(members) > MAX_MEMBERS:
        yield Problem("archive_too_large", f"archive: more than {MAX_MEMBERS} members", "archive")
        return
    seen: set[str] = set()
    for member in members:
        shown = member.orig_filename[:MAX_NAME_CHARS].encode("unicode_escape").decode()
        for code, message in _member_hazards(member):
            yield Problem(code, f"archive member {shown}: {message}", shown)
        if member.filename in seen:
            yield Problem("duplicate_member", f"archive member {shown}: stands twice", shown)
        seen.add(member.filename)
    yield from _overlaps(members, archive_bytes)


def _member_hazards(member: zipfile.ZipInfo) -> Iterator[tuple[str, str]]:
    # zipfile cleans `filename`; what the client wrote is in orig_filename.
    name = member.orig_filename
    if _is_unsafe(name):
        yield "unsafe_member_name", "absolute, with '..', a backslash, a drive, or not printable"
    if len(name) > MAX_NAME_CHARS:
        yield "unsafe_member_name", f"longer than {MAX_NAME_CHARS} characters"
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


def _is_unsafe(name: str) -> bool:
    parts = name.replace("%2f", "/").replace("%2F", "/").split("/")
    if name.startswith("/") or ".." in parts or "\\" in name or _DRIVE.match(name):
        return True
    return not name or not name.isprintable()


def _overlaps(members: list[zipfile.ZipInfo], archive_bytes: int) -> Iterator[Problem]:
    """One stream referenced many times makes a bomb that each member's ratio does not show."""
    ordered = sorted(members, key=lambda member: member.header_offset)
    ends = [member.header_offset for member in ordered[1:]] + [archive_bytes]
    for member, end in zip(ordered, ends, strict=True):
        if member.header_offset + 30 + member.compress_size > end:
            shown = member.filename[:MAX_NAME_CHARS]
            message = f"archive member {shown}: overlaps the next one"
            yield Problem("overlapping_members", message, shown)


def _choose(members: list[zipfile.ZipInfo]) -> tuple[dict[str, zipfile.ZipInfo], list[Problem]]:
    """The wanted files, all in one folder of the archive; a warning for each other file."""
    chosen: dict[str, zipfile.ZipInfo] = {}
    others: list[str] = []
    for member in members:
        name = PurePosixPath(member.filename).name
        if member.is_dir():
            continue
        if name not in WANTED:
            others.append(member.filename)
            continue
        if name in chosen:
            raise _refused("ambiguous_archive", f"more than one {name}", name, "one adapter")
        chosen[name] = member
    _check_complete(chosen, others)
    return chosen, [_dropped(name) for name in others]


def _check_complete(chosen: dict[str, zipfile.ZipInfo], others: list[str]) -> None:
    shards = [name for name in others if _SHARD.fullmatch(PurePosixPath(name).name)]
    if shards:
        message = "sharded weights are not read: save one adapter_model.safetensors"
        raise _refused("sharded_weights", message, shards[0], WANTED[1])
    missing = [name for name in WANTED if name not in chosen]
    pickles = [name for name in others if PurePosixPath(name).suffix.lower() in _PICKLES]
    if WANTED[1] in missing and pickles:
        message = f"{pickles[0][:100]} is a pickle, which is never opened: convert to safetensors"
        raise _refused("pickle", message, pickles[0], WANTED[1])
    if missing:
        problems = [Problem("missing_file", f"archive: no {name}", name, name) for name in missing]
        raise FormatError(problems)


def _dropped(name: str) -> Problem:
    shown = name[:MAX_NAME_CHARS]
    is_pickle = PurePosixPath(name).suffix.lower() in _PICKLES
    message = "a pickle, dropped unopened" if is_pickle else "not part of an adapter: dropped"
    return Problem("dropped_member", f"archive member {shown}: {message}", shown)


def _extract(opened: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, max_bytes: int) -> int:
    """Returns the number of bytes written, at most max_bytes."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    num_bytes = 0
    with opened.open(member) as source, os.fdopen(os.open(target, flags, 0o644), "wb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                message = f"expands beyond {max_bytes} bytes"
                raise _refused("archive_too_large", message, member.filename)
            file.write(chunk)
    return num_bytes
