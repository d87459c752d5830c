"""A small share of the fuzz run (fuzz.py, FUZZ.md), and the inputs that once showed a fault."""

import io
import struct
import zipfile
from pathlib import Path

import pytest

from adapters.validation.archive import unpack
from inference.adapter_format import FormatError
from tests.adapters import fuzz

NUM_INPUTS = 300


def test_damaged_uploads_are_refused_and_harm_nothing(tmp_path: Path) -> None:
    base, sound = fuzz.make_sound(tmp_path)
    found = fuzz.run(range(NUM_INPUTS), sound, base, print)
    assert found["faults"] == {}
    # The damage reaches every layer, and spares some.
    assert found["outcomes"]["accepted"] and found["outcomes"]["refused"] > NUM_INPUTS / 2
    reached = {"broken_archive", "unsafe_member_name", "corrupt_safetensors", "invalid_config"}
    assert reached <= found["codes"].keys()


def test_the_fuzzer_notices_what_it_looks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, sound = fuzz.make_sound(tmp_path / "sound")
    told: list[str] = []

    def broken(request: fuzz.CheckRequest) -> fuzz.Verdict:
        (Path(request.folder).parent / "stray").touch()
        return fuzz.Verdict(digest="x")

    monkeypatch.setattr(fuzz, "check", broken)
    assert fuzz.run(range(1), sound, base, told.append)["outcomes"] == {"fault": 1}
    monkeypatch.setattr(fuzz, "MAX_S", 0.05)
    monkeypatch.setattr(fuzz, "check", lambda _: [None for _ in iter(int, 1)])
    assert fuzz.run(range(1), sound, base, told.append)["outcomes"] == {"fault": 1}
    assert "stray" in told[0] and "longer than" in told[1]


def test_a_zip_whose_directory_claims_more_than_there_is(tmp_path: Path) -> None:
    """It was an OSError from a seek before the beginning: our fault, so tried three times."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in fuzz.WANTED:
            archive.writestr(name, b"{}")
    raw = out.getvalue()
    at = raw.rfind(b"PK\x05\x06")
    (offset,) = struct.unpack_from("<I", raw, at + 16)
    moved = raw[: at + 16] + struct.pack("<I", offset + 50) + raw[at + 20 :]
    (tmp_path / "upload.archive").write_bytes(moved)
    with pytest.raises(FormatError) as caught:
        unpack(tmp_path / "upload.archive", tmp_path, 1 << 20)
    assert caught.value.problems[0].code == "broken_archive"


def test_a_zip_without_members_is_refused_for_what_is_missing(tmp_path: Path) -> None:
    """It was a ValueError of ours."""
    with zipfile.ZipFile(tmp_path / "upload.archive", "w"):
        pass
    with pytest.raises(FormatError) as caught:
        unpack(tmp_path / "upload.archive", tmp_path, 1 << 20)
    assert {problem.code for problem in caught.value.problems} == {"missing_file"}
