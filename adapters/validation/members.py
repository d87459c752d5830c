"""What holds for the members of any archive: their names, which are wanted, how one is written."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from adapters.validation.template_file import TEMPLATE_FILES
from inference.adapter_format import FormatError, Problem

MAX_MEMBERS = 256
MAX_NAME_CHARS = 255
# Trained weights hardly compress; a B of zeros does, but it is refused anyway.
MAX_RATIO = 100
WANTED = ("adapter_config.json", "adapter_model.safetensors")
# Taken when it lies beside the config: a folder of checkpoints has more than one.
OPTIONAL = TEMPLATE_FILES

_CHUNK_BYTES = 1 << 20
_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_SHARD = re.compile(
    r"adapter_model-\d+-of-\d+\.safetensors|adapter_model\.safetensors\.index\.json"
)
_DRIVE = re.compile(r"[A-Za-z]:")


def refused(code: str, message: str, where: str = "archive", expected: str = "") -> FormatError:
    return FormatError([Problem(code, f"archive: {message}", where[:200], expected)])


def too_many_members() -> Problem:
    message = f"archive: more than {MAX_MEMBERS} members"
    return Problem("archive_too_large", message, "archive", f"at most {MAX_MEMBERS} members")


def shown(name: str) -> str:
    return name[:MAX_NAME_CHARS].encode("unicode_escape").decode()


def about(name: str, code: str, message: str) -> Problem:
    return Problem(code, f"archive member {shown(name)}: {message}", shown(name))


def name_hazards(name: str) -> Iterator[tuple[str, str]]:
    if _is_unsafe(name):
        yield "unsafe_member_name", "absolute, with '..', a backslash, a drive, or not printable"
    if len(name) > MAX_NAME_CHARS:
        yield "unsafe_member_name", f"longer than {MAX_NAME_CHARS} characters"


def _is_unsafe(name: str) -> bool:
    parts = name.replace("%2f", "/").replace("%2F", "/").split("/")
    if name.startswith("/") or ".." in parts or "\\" in name or _DRIVE.match(name):
        return True
    return not name or not name.isprintable()


class SeenNames:
    """Two members of one name mean different files to different readers."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def add(self, name: str) -> Problem | None:
        plain = str(PurePosixPath(name))
        if plain == ".":
            # The packed folder's own entry.
            return None
        first = self._first.setdefault(plain.casefold(), name)
        if first is name:
            return None
        if str(PurePosixPath(first)) == plain:
            return about(name, "duplicate_member", "stands twice")
        return about(name, "case_clash", f"differs from {shown(first)} by case only")


def choose(names: Iterable[str]) -> tuple[dict[str, str], list[Problem]]:
    """Of files: wanted or optional file → the member's name; a warning for each other one."""
    chosen: dict[str, str] = {}
    others: list[str] = []
    for member in names:
        name = PurePosixPath(member).name
        if name not in WANTED:
            others.append(member)
            continue
        if name in chosen:
            raise refused("ambiguous_archive", f"more than one {name}", name, "one adapter")
        chosen[name] = member
    _check_complete(chosen, others)
    beside = PurePosixPath(chosen[WANTED[0]]).parent
    for member in [name for name in others if is_beside(name, beside)]:
        chosen[PurePosixPath(member).name] = member
        others.remove(member)
    return chosen, [_dropped(name) for name in others]


def is_beside(member: str, folder: PurePosixPath) -> bool:
    path = PurePosixPath(member)
    return path.name in OPTIONAL and path.parent == folder


def _check_complete(chosen: dict[str, str], others: list[str]) -> None:
    shards = [name for name in others if _SHARD.fullmatch(PurePosixPath(name).name)]
    if shards:
        message = "sharded weights are not read: save one adapter_model.safetensors"
        raise refused("sharded_weights", message, shards[0], WANTED[1])
    missing = [name for name in WANTED if name not in chosen]
    pickles = [name for name in others if is_pickle(name)]
    if WANTED[1] in missing and pickles:
        message = f"{pickles[0][:100]} is a pickle, which is never opened: convert to safetensors"
        raise refused("pickle", message, pickles[0], WANTED[1])
    if missing:
        problems = [Problem("missing_file", f"archive: no {name}", name, name) for name in missing]
        raise FormatError(problems)


def is_pickle(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in _PICKLES


def _dropped(name: str) -> Problem:
    return about(
        name,
        "dropped_member",
        "a pickle, dropped unopened" if is_pickle(name) else "not part of an adapter: dropped",
    )


def write_bounded(source: IO[bytes], target: Path, max_bytes: int, where: str) -> int:
    """Returns the number of bytes written, at most max_bytes."""
    # Never into a file that is there: a published blob may be another link to it.
    if not target.is_symlink():
        target.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    num_bytes = 0
    with os.fdopen(os.open(target, flags, 0o644), "wb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                raise refused("archive_too_large", f"expands beyond {max_bytes} bytes", where)
            file.write(chunk)
    return num_bytes
