"""An upload in parts, which goes on where it broke off. Nothing is kept here between two runs.

The house says which parts of which open upload it has: one whose parts all have our checksums is
ours, and only what is missing is sent.
"""

import hashlib
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from grafthouse.client import House, adapter_path
from grafthouse.failure import Exit, Failure
from grafthouse.packed import Packed

# What is larger goes in parts. A part is read into memory, and sent again when its line breaks.
PART_BYTES = 16 << 20
# A house that restarts is back within this time, a line that broke often too.
WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
# The bytes were damaged on their way: nothing of them was kept.
DAMAGED = "checksum_mismatch"

Moved = Callable[[int], None]
T = TypeVar("T")


class Counted(io.RawIOBase):
    """A file that says how many bytes of it were read, as they go out."""

    def __init__(self, file: BinaryIO, moved: Moved) -> None:
        self._file = file
        self._moved = moved

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._moved(len(data))
        return data

    # By which the client learns the length: it is sent ahead of the bytes.
    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


@dataclass(frozen=True)
class Part:
    number: int
    data: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def cut(packed: Packed, part_bytes: int) -> Iterator[Part]:
    for number, start in enumerate(range(0, packed.num_bytes, part_bytes), 1):
        yield Part(number, packed.read(start, part_bytes))


def send_in_parts(house: House, adapter: str, packed: Packed, moved: Moved) -> dict[str, Any]:
    """The new version, still unchecked."""
    upload = find_open(house, adapter, packed) or _open(house, adapter, packed)
    where, held = f"/v1/uploads/{upload['id']}", {one["number"]: one for one in upload["parts"]}
    ids = []
    try:
        for part in cut(packed, _part_bytes(upload)):
            if part.number in held:
                moved(len(part.data))
                ids.append(held[part.number]["id"])
            else:
                ids.append(_send(house, where, part, moved)["id"])
        done = _patiently(lambda: house.call("POST", f"{where}/complete", json={"part_ids": ids}))
    except Failure as failure:
        told = f"{failure} What has arrived is kept for a day: the same command goes on."
        raise Failure(told, failure.code, failure.reason) from failure
    return dict(house.ask("GET", adapter_path(adapter, "versions", done["version"]["number"])))


def find_open(house: House, adapter: str, packed: Packed) -> dict[str, Any] | None:
    """The newest open upload of the same file, so far as it has arrived."""
    wanted = (adapter, packed.filename, packed.num_bytes)
    for upload in house.rows("uploads/", 1000):
        found = (upload["adapter"], upload["filename"], upload["bytes"])
        if found == wanted and _is_ours(upload, packed):
            return upload
    return None


def _is_ours(upload: dict[str, Any], packed: Packed) -> bool:
    size = _part_bytes(upload)
    for held in upload["parts"]:
        part = Part(held["number"], packed.read((held["number"] - 1) * size, size))
        if (len(part.data), part.sha256) != (held["bytes"], held["sha256"]):
            return False
    return True


def _part_bytes(upload: dict[str, Any]) -> int:
    return min(PART_BYTES, int(upload["max_part_bytes"]))


def _open(house: House, adapter: str, packed: Packed) -> dict[str, Any]:
    announced = {"filename": packed.filename, "bytes": packed.num_bytes, "adapter": adapter}
    return dict(house.call("POST", "/v1/uploads", json={**announced, "purpose": "fine-tune"}))


def _send(house: House, where: str, part: Part, moved: Moved) -> dict[str, Any]:
    query = {"number": str(part.number), "sha256": part.sha256}

    def once() -> dict[str, Any]:
        num_sent = 0

        def count(num_bytes: int) -> None:
            nonlocal num_sent
            num_sent += num_bytes
            moved(num_bytes)

        try:
            files = {"data": ("part", Counted(io.BytesIO(part.data), count))}
            return dict(house.call("POST", f"{where}/parts", params=query, files=files))
        except Failure:
            moved(-num_sent)
            raise

    return _patiently(once)


def _patiently(call: Callable[[], T]) -> T:
    """Again after a broken line, a house that failed, or damaged bytes: each call is idempotent."""
    for wait_s in WAITS_S:
        try:
            return call()
        except Failure as failure:
            is_passing = failure.code in (Exit.UNREACHABLE, Exit.FAILED)
            if not is_passing and failure.reason != DAMAGED:
                raise
        time.sleep(wait_s)
    return call()
