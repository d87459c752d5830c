"""Hostile zips: refused whole, nothing written outside, nothing unpacked without bound."""

import io
import os
import stat
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.validation.archive import unpack
from adapters.validation.members import MAX_MEMBERS
from inference.adapter_format import FormatError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_BYTES = 1 << 20


def zip_of(members: list[tuple[Any, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return out.getvalue()


GOOD = [(CONFIG, b"{}"), (WEIGHTS, os.urandom(2000))]


def try_unpack(folder: Path, content: bytes, max_bytes: int = MAX_BYTES) -> Any:
    staging = folder / "outer" / "staging"
    staging.mkdir(parents=True, exist_ok=True)
    (staging / "upload.archive").write_bytes(content)
    try:
        return unpack(staging / "upload.archive", staging, max_bytes)
    finally:
        outside = {path for path in folder.rglob("*") if path.is_file()}
        allowed = {staging / name for name in ("upload.archive", CONFIG, WEIGHTS)}
        assert outside <= allowed, "something was written elsewhere"


def refusal(folder: Path, content: bytes, max_bytes: int = MAX_BYTES) -> set[str]:
    with pytest.raises(FormatError) as caught:
        try_unpack(folder, content, max_bytes)
    assert caught.value.problems
    return {problem.code for problem in caught.value.problems}


def test_it_works(tmp_path: Path) -> None:
    assert try_unpack(tmp_path, zip_of(GOOD)) == []
    assert (tmp_path / "outer" / "staging" / WEIGHTS).read_bytes() == GOOD[1][1]


def test_one_folder_around_the_files_is_fine(tmp_path: Path) -> None:
    members = [("my-adapter/", b""), *((f"my-adapter/{name}", data) for name, data in GOOD)]
    assert try_unpack(tmp_path, zip_of(members)) == []


@pytest.mark.case("C48")
def test_other_files_are_dropped_with_a_warning(tmp_path: Path) -> None:
    warnings = try_unpack(tmp_path, zip_of([*GOOD, ("README.md", b"x"), ("optimizer.pt", b"x")]))
    assert [warning.where for warning in warnings] == ["README.md", "optimizer.pt"]
    assert "pickle" in warnings[1].message


@pytest.mark.case("C55")
@pytest.mark.parametrize(
    "name",
    [
        "../../evil",
        "/abs/evil",
        "C:\\evil",
        "C:evil",
        "a\\..\\..\\evil",
        "a/../../evil",
        "..%2fevil",
        "a/..",
        "x" * 300,
        "tab\tname",
        "\u202egnp.exe",
    ],
)
def test_a_member_name_that_leads_outside_refuses_all(name: str, tmp_path: Path) -> None:
    assert "unsafe_member_name" in refusal(tmp_path, zip_of([*GOOD, (name, b"x")]))


@pytest.mark.case("C55")
def test_a_nul_in_a_name_is_seen_before_zipfile_cuts_it(tmp_path: Path) -> None:
    content = zip_of([*GOOD, ("evilXname", b"x")]).replace(b"evilXname", b"evil\0name")
    assert "unsafe_member_name" in refusal(tmp_path, content)


@pytest.mark.case("C57")
@pytest.mark.parametrize(
    "mode",
    [stat.S_IFLNK | 0o777, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK, stat.S_IFREG | stat.S_ISUID],
)
def test_links_and_special_files_refuse_all(mode: int, tmp_path: Path) -> None:
    member = zipfile.ZipInfo(WEIGHTS)
    member.external_attr = mode << 16
    assert refusal(tmp_path, zip_of([GOOD[0], (member, b"/etc/passwd")])) == {"special_member"}


@pytest.mark.case("C57")
def test_an_existing_link_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "target"
    staging = tmp_path / "outer" / "staging"
    staging.mkdir(parents=True)
    target.write_bytes(b"keep")
    (staging / WEIGHTS).symlink_to(target)
    (staging / "upload.archive").write_bytes(zip_of(GOOD))
    with pytest.raises(OSError):
        unpack(staging / "upload.archive", staging, MAX_BYTES)
    assert target.read_bytes() == b"keep"


@pytest.mark.case("C58")
def test_a_member_that_expands_too_much_is_refused(tmp_path: Path) -> None:
    content = zip_of([GOOD[0], (WEIGHTS, bytes(50 << 20))])
    assert len(content) < 100_000
    assert refusal(tmp_path, content) == {"archive_bomb"}


@pytest.mark.case("C58")
def test_bytes_are_counted_while_they_are_written(tmp_path: Path) -> None:
    content = zip_of([GOOD[0], (WEIGHTS, os.urandom(5000))])
    assert refusal(tmp_path, content, max_bytes=4096) == {"archive_too_large"}
    assert (tmp_path / "outer" / "staging" / WEIGHTS).stat().st_size <= 4096


@pytest.mark.case("C58")
def test_a_declared_size_smaller_than_the_stream_is_refused(tmp_path: Path) -> None:
    content = bytearray(zip_of([GOOD[0], (WEIGHTS, os.urandom(5000))]))
    at = content.rfind(b"PK\x01\x02")
    struct.pack_into("<I", content, at + 24, 100)
    assert refusal(tmp_path, bytes(content)) == {"broken_archive"}


@pytest.mark.case("C58")
def test_overlapping_members_are_refused(tmp_path: Path) -> None:
    """One stream, referenced by many entries: each with a harmless ratio of its own."""
    content = bytearray(zip_of([*GOOD, ("x", os.urandom(500))]))
    last = content.rfind(b"PK\x01\x02")
    first = content.find(b"PK\x01\x02")
    content[last + 42 : last + 46] = content[first + 42 : first + 46]
    assert "overlapping_members" in refusal(tmp_path, bytes(content))


@pytest.mark.case("C58")
@pytest.mark.parametrize("num_members", [MAX_MEMBERS + 1, 70_000])
def test_many_members_are_refused_before_they_are_read(num_members: int, tmp_path: Path) -> None:
    content = zip_of([(f"f{number}", b"") for number in range(num_members)], zipfile.ZIP_STORED)
    assert refusal(tmp_path, content) == {"archive_too_large"}


@pytest.mark.case("C58")
def test_zip64_cannot_hide_the_number_of_members(tmp_path: Path) -> None:
    content = zip_of(GOOD)
    at = content.rfind(b"PK\x05\x06")
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, 0, 1)
    assert refusal(tmp_path, content[:at] + locator + content[at:]) == {"archive_too_large"}


@pytest.mark.case("C58")
def test_a_zip_in_a_zip_is_not_opened(tmp_path: Path) -> None:
    assert refusal(tmp_path, zip_of([("inner.zip", zip_of(GOOD))])) == {"missing_file"}


@pytest.mark.case("C48")
@pytest.mark.parametrize("name", ["adapter_model.bin", "weights.pt", "a/model.ckpt", "X.PTH"])
def test_only_a_pickle_is_refused_with_advice(name: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, zip_of([GOOD[0], (name, b"x")])) == {"pickle"}


@pytest.mark.case("C50")
def test_shards_are_refused_with_advice(tmp_path: Path) -> None:
    members = [GOOD[0], ("adapter_model-00001-of-00002.safetensors", b"x")]
    assert refusal(tmp_path, zip_of(members)) == {"sharded_weights"}
    members = [*GOOD, ("adapter_model.safetensors.index.json", b"{}")]
    assert refusal(tmp_path, zip_of(members)) == {"sharded_weights"}


@pytest.mark.case("C51")
@pytest.mark.case("C53")
@pytest.mark.parametrize("name", ["tokenizer.json", "checkpoint-5/chat_template.jinja"])
def test_a_tokenizer_or_anothers_template_is_left_behind(name: str, tmp_path: Path) -> None:
    """The base's is used, and its owner is told. What lies beside the config is tried in a sandbox
    (test_uploaded_template.py).
    """
    hostile = b"{{ ''.__class__.__mro__[1].__subclasses__() }}"
    warnings = try_unpack(tmp_path, zip_of([*GOOD, (name, hostile)]))
    assert [warning.found or warning.where for warning in warnings] == [name]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_is_ambiguous_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, zip_of([*GOOD, (CONFIG, b"{}")])) == {"duplicate_member"}
    assert refusal(tmp_path, zip_of([*GOOD, (f"x/{CONFIG}", b"{}")])) == {"ambiguous_archive"}


@pytest.mark.parametrize("content", [b"", b"PK", b"BZh9" + bytes(100), b"ustar" * 2])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    assert refusal(tmp_path, content) == {"unknown_archive"}


def test_encryption_and_odd_compression_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, zip_of(GOOD, zipfile.ZIP_LZMA)) == {"unsupported_compression"}
    content = bytearray(zip_of(GOOD))
    content[content.rfind(b"PK\x01\x02") + 8] |= 1
    assert refusal(tmp_path, bytes(content)) == {"encrypted_member"}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    changes=st.lists(st.tuples(st.integers(0, 2400), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 200),
)
def test_a_damaged_zip_is_refused_or_read_never_a_crash(
    changes: list[tuple[int, int]], cut: int, tmp_path: Path
) -> None:
    content = bytearray(zip_of(GOOD))
    for at, byte in changes:
        content[at % len(content)] = byte
    try:
        try_unpack(tmp_path, bytes(content[: len(content) - cut]))
    except FormatError as error:
        assert error.problems
