"""An upload's parts become its one file: each byte copied once, by the kernel."""

import contextlib
import json
import os
from pathlib import Path

ARCHIVE = "upload.archive"
ORDER = "parts.json"

_CHUNK_BYTES = 1 << 26


def join_parts(folder: Path) -> None:
    """By folder's ORDER; without one there is nothing to do. Killed anywhere, it is run again."""
    if not (folder / ORDER).exists():
        return
    names = json.loads((folder / ORDER).read_text())
    if not (folder / ARCHIVE).exists():
        partial = folder / f"{ARCHIVE}.partial"
        partial.unlink(missing_ok=True)
        _write(partial, [folder / name for name in names])
        partial.rename(folder / ARCHIVE)
    for path in folder.glob("part_*"):
        path.unlink()


def _write(target: Path, parts: list[Path]) -> None:
    if len(parts) == 1:
        # A link: not even once.
        os.link(parts[0], target)
        return
    with target.open("xb") as out:
        for path in parts:
            with path.open("rb") as part:
                while _copy(part.fileno(), out.fileno()):
                    pass


def _copy(source: int, target: int) -> int:
    """From where both stand; 0 at the end."""
    with contextlib.suppress(OSError):
        return os.copy_file_range(source, target, _CHUNK_BYTES)
    # A file system that cannot: through the processor, then.
    chunk = os.read(source, 1 << 20)
    view = memoryview(chunk)
    while view:
        view = view[os.write(target, view) :]
    return len(chunk)
