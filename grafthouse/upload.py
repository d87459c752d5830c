"""One version on its way: which files, their bytes as they go, and the wait for a verdict."""

import io
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from grafthouse.client import House, adapter_path
from grafthouse.failure import Exit, Failure

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
POLL_INTERVAL_S = 0.3

Moved = Callable[[int], None]


def files_of(path: Path) -> dict[str, Path]:
    """The upload's fields: a folder is its two files, a file is an archive. Raises Failure."""
    if path.is_dir():
        found = {"config": path / CONFIG_FILE, "weights": path / WEIGHTS_FILE}
        missing = [file.name for file in found.values() if not file.is_file()]
        if missing:
            raise Failure(f"{path}: no {' and no '.join(missing)} in it.", Exit.USAGE)
        return found
    if not path.is_file():
        raise Failure(f"{path}: neither a folder nor a file.", Exit.USAGE)
    if not path.name.lower().endswith(ARCHIVE_SUFFIXES):
        expected = f"expected a folder with {CONFIG_FILE} and {WEIGHTS_FILE}, or an archive of it"
        raise Failure(f"{path}: {expected}.", Exit.USAGE)
    return {"archive": path}


def default_name(path: Path) -> str:
    """support-bot/ and support-bot.tar.gz are both support-bot."""
    name = path.resolve().name
    ends = () if path.is_dir() else ARCHIVE_SUFFIXES
    return next((name[: -len(end)] for end in ends if name.lower().endswith(end)), name)


class Counted(io.RawIOBase):
    """A file that says how many bytes of it were read, as they go out."""

    def __init__(self, file: BinaryIO, moved: Moved) -> None:
        self._file = file
        self._moved = moved

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._moved(len(data))
        return data

    def fileno(self) -> int:
        # By which the client learns the length: it is sent ahead of the bytes.
        return self._file.fileno()

    def readable(self) -> bool:
        return True


def send(house: House, adapter: str, files: dict[str, Path], moved: Moved) -> dict[str, Any]:
    """The new version, still unchecked."""
    with ExitStack() as stack:
        opened = {name: stack.enter_context(path.open("rb")) for name, path in files.items()}
        body = {name: (name, Counted(file, moved)) for name, file in opened.items()}
        return dict(house.ask("POST", adapter_path(adapter, "versions"), files=body))


def wait_for(
    house: House, adapter: str, number: int, states: frozenset[str], timeout_s: float
) -> dict[str, Any]:
    """The version once it is in one of the states. A house that restarts is waited for."""
    deadline = time.monotonic() + timeout_s
    state = "unknown"
    while time.monotonic() < deadline:
        try:
            version = house.ask("GET", adapter_path(adapter, "versions", number))
        except Failure as failure:
            if failure.code not in (Exit.UNREACHABLE, Exit.FAILED):
                raise
        else:
            state = version["state"]
            if state in states:
                return dict(version)
        time.sleep(POLL_INTERVAL_S)
    raise Failure(f"{adapter}@{number} is still {state} after {timeout_s:g} s.", Exit.TIMED_OUT)
