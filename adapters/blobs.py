"""Published bytes by digest: one small interface, a folder here, an S3 bucket in s3.py.

A replica reads a folder, so every store answers with one: <root>/<digest[:2]>/<digest>/.
"""

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from inference.adapter_format import digest as digest_of

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
FILES = (CONFIG_FILE, WEIGHTS_FILE)

_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobError(Exception):
    """Bytes that should be there are not, are others, or cannot be reached; fit for an operator."""


class Blobs(Protocol):
    def publish(self, digest: str, source: Path) -> None:
        """Keeps source's two files under their digest, for good on return. Idempotent."""

    def local_dir(self, digest: str) -> Path:
        """A folder with both files, whole. Raises BlobError."""

    def delete(self, digest: str, is_needed: Callable[[], bool]) -> bool:
        """Whether the bytes went. is_needed is asked again once nobody can find them any more."""

    def pages(self, min_age_s: float) -> Iterator[set[str]]:
        """The digests of all that is kept and older than that, a bounded number at a time."""

    def end_deletes(self, max_age_s: float, is_needed: Callable[[str], bool]) -> int:
        """Ends what a killed delete() left, older than that: what is needed comes back, the rest
        goes. Returns how many.
        """


class FolderBlobs:
    """Every move is one rename in one file system: a reader sees a whole blob or none."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"not a digest: {digest!r}")
        return self._root / digest[:2] / digest

    def publish(self, digest: str, source: Path) -> None:
        target = self.path(digest)
        if target.is_dir():
            return
        staged = source / "blob"
        staged.mkdir(exist_ok=True)
        for name in FILES:
            # A link, not a move: a worker that dies here leaves the upload whole for the next one.
            with contextlib.suppress(FileExistsError):
                os.link(source / name, staged / name)
            sync_file(staged / name)
        target.parent.mkdir(parents=True, exist_ok=True)
        rename_unless_there(staged, target)
        sync_dir(target.parent)

    def local_dir(self, digest: str) -> Path:
        if not self.path(digest).is_dir():
            raise BlobError(f"the store has no bytes of {digest}")
        return self.path(digest)

    def delete(self, digest: str, is_needed: Callable[[], bool]) -> bool:
        target = self.path(digest)
        if not target.is_dir():
            return False
        trash = self.trash(digest)
        target.rename(trash)
        if is_needed():
            # Wanted again between the question and the move.
            rename_unless_there(trash, target)
        shutil.rmtree(trash, ignore_errors=True)
        return not target.is_dir()

    def pages(self, min_age_s: float) -> Iterator[set[str]]:
        for folder in self._root.glob("[0-9a-f]" * 2):
            found = {path.name for path in folder.iterdir() if _is_older(path, min_age_s)}
            yield {name for name in found if _DIGEST.fullmatch(name)}

    def end_deletes(self, max_age_s: float, is_needed: Callable[[str], bool]) -> int:
        num_ended = 0
        for left in (self._root / "trash").glob("*.*"):
            digest = left.name.partition(".")[0]
            if not _DIGEST.fullmatch(digest) or not _is_older(left, max_age_s):
                continue
            if is_needed(digest) and _is_whole(left, digest):
                rename_unless_there(left, self.path(digest))
            shutil.rmtree(left, ignore_errors=True)
            num_ended += 1
        return num_ended

    def trash(self, digest: str) -> Path:
        """A name on the way in or out that nobody reads."""
        path = self._root / "trash" / f"{digest}.{secrets.token_hex(4)}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def _is_whole(folder: Path, digest: str) -> bool:
    """Whether both files are in it, with this digest."""
    try:
        return digest_of((folder / CONFIG_FILE).read_bytes(), folder / WEIGHTS_FILE) == digest
    except OSError:
        return False


def _is_older(path: Path, age_s: float) -> bool:
    """A blob keeps its age on the way out; what is on the way in is young."""
    try:
        return path.stat().st_mtime < time.time() - age_s
    except OSError:
        return False


def rename_unless_there(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        # Another process published the same bytes first.
        if not target.is_dir():
            raise


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_dir(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
