"""The folder of compiled adapters: found by content, bounded in bytes, shared between processes.

A file is named by the adapter's digest and the key of the layout, written beside and renamed when
whole. It is only read when it is ours, and believed when every byte is as its header says. That
proves against accidents; who may write to the folder could write a whole false file, so it must be
this user's alone. Within a process even that is noticed: a digest keeps the root it first had.
"""

import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from inference.errors import EngineError, ErrorCode
from inference.page_file import (
    Contents,
    PageFile,
    PageFileError,
    PageHeader,
    read_header,
    read_pages,
    write_pages,
)

logger = logging.getLogger(__name__)

SUFFIX = ".pages"
UNFINISHED_SUFFIX = ".unfinished"


@dataclass(frozen=True)
class Compiled:
    """An open file of pages, whose header is right. close() it."""

    fd: int
    file: PageFile

    @property
    def contents(self) -> Contents:
        return self.file.header.contents

    def close(self) -> None:
        os.close(self.fd)


class PageFolder:
    """Of one layout (key). Any thread may call."""

    def __init__(self, folder: Path, key: str, page_bytes: int, max_bytes: int) -> None:
        """Raises EngineError INVALID_REQUEST when the folder cannot be used or trusted."""
        self.folder = folder
        self.num_evictions = 0
        self._key, self._page_bytes, self._max_bytes = key, page_bytes, max_bytes
        self._roots: dict[str, bytes] = {}
        self._lock = Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = folder.stat()
        except OSError as error:
            raise _unusable(folder, str(error)) from error
        if not _is_ours(found):
            raise _unusable(folder, "it must be this user's, and nobody else may write to it")

    def path_of(self, digest: str) -> Path:
        return self.folder / f"{digest}-{self._key[:16]}{SUFFIX}"

    def open(self, digest: str) -> Compiled | None:
        """None when there is none; one that is wrong is removed, and said so."""
        path = self.path_of(digest)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("%s cannot be read: %s", path, error)
            return None
        try:
            compiled = Compiled(fd, self._checked(fd, digest))
        except (OSError, PageFileError) as error:
            os.close(fd)
            self._reject(path, error)
            return None
        with suppress(OSError):
            # Used now: the least recently used leave first.
            os.utime(fd)
        return compiled

    def read(self, compiled: Compiled, rows: Sequence[memoryview], threads: Executor) -> bool:
        """Fills the rows; False when the file proved wrong, which is removed then."""
        try:
            read_pages(compiled.fd, compiled.file, rows, threads)
        except (OSError, PageFileError) as error:
            self._reject(self.path_of(compiled.file.header.digest), error)
            return False
        return True

    def write(
        self, digest: str, contents: Contents, rows: Sequence[memoryview], threads: Executor
    ) -> bool:
        """Adds a file and makes room for it; False when that failed, which is logged."""
        num_bytes = len(rows) * self._page_bytes
        if num_bytes > self._max_bytes:
            return False
        header = PageHeader(self._key, digest, len(rows), self._page_bytes, contents, ())
        unfinished = self.folder / f"{digest}-{secrets.token_hex(8)}{UNFINISHED_SUFFIX}"
        try:
            self._make_room(num_bytes)
            root = self._write(unfinished, header, rows, threads)
        except OSError as error:
            logger.warning("the compiled adapter %s cannot be kept: %s", digest, error)
            _remove(unfinished)
            return False
        with self._lock:
            self._roots[digest] = root
        return True

    def _write(
        self, path: Path, header: PageHeader, rows: Sequence[memoryview], threads: Executor
    ) -> bytes:
        """Without fsync: what a power cut leaves half written is noticed when it is read."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Held by the living only: what a killed process leaves is removed by the next.
            fcntl.flock(fd, fcntl.LOCK_EX)
            root = write_pages(fd, header, rows, threads)
            path.rename(self.path_of(header.digest))
        finally:
            os.close(fd)
        return root

    def _checked(self, fd: int, digest: str) -> PageFile:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or not _is_ours(found):
            raise PageFileError("not this user's file")
        file = read_header(fd)
        header = file.header
        if (header.key, header.digest, header.page_bytes) != (self._key, digest, self._page_bytes):
            raise PageFileError("of another adapter or layout")
        with self._lock:
            if self._roots.setdefault(digest, file.root) != file.root:
                raise PageFileError("not the file that was read or written before")
        return file

    def _reject(self, path: Path, error: Exception) -> None:
        logger.warning("%s is not used: %s", path, error)
        _remove(path)

    def _make_room(self, num_bytes: int) -> None:
        """Removes what killed processes left, then the least recently used."""
        files = []
        for path in list(self.folder.iterdir()):
            if path.suffix == UNFINISHED_SUFFIX and _is_abandoned(path):
                _remove(path)
            elif path.suffix in (SUFFIX, UNFINISHED_SUFFIX):
                # Another process may have removed it.
                with suppress(FileNotFoundError):
                    files.append((path, path.lstat()))
        total = sum(found.st_size for _, found in files) + num_bytes
        for path, found in sorted(files, key=lambda item: item[1].st_mtime_ns):
            if total <= self._max_bytes:
                return
            if path.suffix == SUFFIX:
                _remove(path)
                total -= found.st_size
                self.num_evictions += 1


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _is_abandoned(path: Path) -> bool:
    """Whether nobody writes it any more."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _remove(path: Path) -> None:
    """Another process may have been faster, or the folder is mounted for reading only."""
    with suppress(OSError):
        path.unlink()


def _unusable(folder: Path, reason: str) -> EngineError:
    message = f"the folder for compiled adapters, {folder}, cannot be used: {reason}"
    return EngineError(ErrorCode.INVALID_REQUEST, message)
