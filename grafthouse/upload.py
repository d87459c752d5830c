"""One version on its way: which files, their bytes as they go, and the wait for a verdict."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from grafthouse.client import House, adapter_path
from grafthouse.failure import Exit, Failure
from grafthouse.packed import pack
from grafthouse.parts import PART_BYTES, Counted, Moved, send_in_parts

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
# Where a trainer saves the chat template that the adapter was trained with.
TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
POLL_INTERVAL_S = 0.3


def files_of(path: Path) -> dict[str, Path]:
    """The upload's fields: a folder is its two files and where its chat template may be, a file is
    an archive. Raises Failure.
    """
    if path.is_dir():
        found = {"config": path / CONFIG_FILE, "weights": path / WEIGHTS_FILE}
        missing = [file.name for file in found.values() if not file.is_file()]
        if missing:
            raise Failure(f"{path}: no {' and no '.join(missing)} in it.", Exit.USAGE)
        beside = {name: path / name for name in TEMPLATE_FILES}
        return found | {name: file for name, file in beside.items() if file.is_file()}
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


def send(house: House, adapter: str, files: dict[str, Path], moved: Moved) -> dict[str, Any]:
    """The new version, still unchecked. What is large goes in parts, and goes on after a drop."""
    packed = pack(adapter, files)
    if packed.num_bytes > PART_BYTES:
        return send_in_parts(house, adapter, packed, moved)
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
