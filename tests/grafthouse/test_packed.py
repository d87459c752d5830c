"""A folder is one tar that is never written: the same bytes each time, from any place on."""

import os
import time
from pathlib import Path

import pytest

from adapters.validation.archive import unpack
from grafthouse.packed import Packed, pack
from grafthouse.parts import cut
from grafthouse.upload import CONFIG_FILE, WEIGHTS_FILE


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "bot"
    folder.mkdir()
    (folder / CONFIG_FILE).write_bytes(b"{}" * 300)
    (folder / WEIGHTS_FILE).write_bytes(os.urandom(5000))
    return {"config": folder / CONFIG_FILE, "weights": folder / WEIGHTS_FILE}


def test_it_works(files: dict[str, Path], tmp_path: Path) -> None:
    """The house's own reader finds both files in it, byte for byte."""
    packed = pack("bot", files)
    archive = tmp_path / packed.filename
    archive.write_bytes(packed.read(0, packed.num_bytes))
    assert archive.name == "bot.tar" and archive.stat().st_size == packed.num_bytes
    (tmp_path / "out").mkdir()
    assert unpack(archive, tmp_path / "out", 1 << 20) == []
    for path in files.values():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("part_bytes", [1, 7, 511, 512, 513, 4096, 100_000])
def test_parts_are_the_whole(files: dict[str, Path], part_bytes: int) -> None:
    packed = pack("bot", files)
    parts = list(cut(packed, part_bytes))
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert b"".join(part.data for part in parts) == packed.read(0, packed.num_bytes)
    assert {len(part.data) for part in parts[:-1]} <= {part_bytes}


def test_another_time_makes_no_other_bytes(files: dict[str, Path]) -> None:
    before = pack("bot", files).read(0, 1 << 20)
    os.utime(files["weights"], (time.time() - 1e6, time.time() - 1e6))
    files["config"].chmod(0o600)
    assert pack("bot", files).read(0, 1 << 20) == before


def test_an_archive_is_sent_as_it_is(tmp_path: Path) -> None:
    archive = tmp_path / "bot.tar.gz"
    archive.write_bytes(b"any bytes")
    packed = pack("bot", {"archive": archive})
    assert packed == Packed("bot.tar.gz", (archive,))
    assert packed.read(4, 100) == b"bytes"
