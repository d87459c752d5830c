"""Hostile tars: refused whole, nothing written outside, nothing read without bound."""

import gzip
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.validation.members import MAX_MEMBERS
from inference.adapter_format import FormatError
from tests.adapters.test_archive import CONFIG, GOOD, MAX_BYTES, WEIGHTS, refusal, try_unpack

Entry = tuple[str | tarfile.TarInfo, bytes]


def tar_of(members: list[Entry], mode: str = "w", format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=format) as archive:  # type: ignore[call-overload]
        for name, content in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            if info.isreg():
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_it_works(mode: str, format: int, tmp_path: Path) -> None:
    members: list[Entry] = [
        (special("./", tarfile.DIRTYPE), b""),
        *((f"./{name}", data) for name, data in GOOD),
        (f"./{'long-' * 30}.md", b"x"),
    ]
    if format == tarfile.USTAR_FORMAT:
        members.pop()
    warnings = try_unpack(tmp_path, tar_of(members, mode, format))
    assert {warning.code for warning in warnings} <= {"dropped_member"}
    for name, data in GOOD:
        assert (tmp_path / "outer" / "staging" / name).read_bytes() == data


def test_what_the_tar_command_packs_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "packed" / "support-bot"
    folder.mkdir(parents=True)
    for name, data in GOOD:
        (folder / name).write_bytes(data)
    for options in (["czf"], ["cf"]):
        where = ["-C", str(folder.parent), "support-bot"]
        done = subprocess.run(["tar", *options, "-", *where], capture_output=True, check=True)
        assert try_unpack(tmp_path / options[0], done.stdout) == []


@pytest.mark.case("C55")
@pytest.mark.parametrize("name", ["../../evil", "/abs/evil", "C:evil", "a\\evil", "a/../../evil"])
def test_a_member_name_that_leads_outside_refuses_all(name: str, tmp_path: Path) -> None:
    assert "unsafe_member_name" in refusal(tmp_path, tar_of([*GOOD, (name, b"x")]))


@pytest.mark.case("C57")
@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CONTTYPE,
        tarfile.GNUTYPE_SPARSE,
    ],
)
def test_links_devices_and_sparse_files_refuse_all(kind: bytes, tmp_path: Path) -> None:
    members = [GOOD[0], (special(WEIGHTS, kind, "/etc/passwd"), b""), ("x", b"x")]
    assert refusal(tmp_path, tar_of(members, format=tarfile.GNU_FORMAT)) == {"special_member"}


@pytest.mark.case("C57")
@pytest.mark.parametrize("version", ["0.0", "0.1", "1.0"])
def test_sparse_files_of_pax_refuse_all(version: str, tmp_path: Path) -> None:
    info = tarfile.TarInfo(WEIGHTS)
    major, minor = version.split(".")
    info.pax_headers = {
        "GNU.sparse.major": major,
        "GNU.sparse.minor": minor,
        "GNU.sparse.map": "0,9",
        "GNU.sparse.size": "9",
    }
    members: list[Entry] = [GOOD[0], (info, b"9999999999\n" * 60)]
    assert refusal(tmp_path, tar_of(members)) == {"special_member"}


@pytest.mark.case("C58")
def test_bombs_are_refused(tmp_path: Path) -> None:
    big = tar_of([GOOD[0], (WEIGHTS, bytes(30 << 20))], "w:gz")
    assert len(big) < 100_000
    assert refusal(tmp_path, big, 64 << 20) == {"archive_bomb"}
    # In a member that would be dropped, behind the wanted ones.
    hidden = gzip.compress(tar_of([*GOOD, ("x", bytes(30 << 20))]))
    assert refusal(tmp_path, hidden, 64 << 20) == {"archive_bomb"}
    many = tar_of([*GOOD, *((f"f{number}", b"") for number in range(MAX_MEMBERS))])
    assert refusal(tmp_path, many) == {"archive_too_large"}
    plain = tar_of([GOOD[0], (WEIGHTS, os.urandom(5000))])
    assert refusal(tmp_path, plain, max_bytes=4096) == {"archive_too_large"}
    assert (tmp_path / "outer" / "staging" / WEIGHTS).stat().st_size <= 4096


@pytest.mark.case("C58")
def test_a_header_that_would_fill_memory_is_refused(tmp_path: Path) -> None:
    long_name = special("././@LongLink", tarfile.GNUTYPE_LONGNAME)
    long_name.size = 1 << 40
    header = long_name.tobuf(tarfile.GNU_FORMAT)
    assert refusal(tmp_path, header + bytes(2048)) == {"archive_too_large"}
    # Thousands of them, each small, in front of one member.
    long_name.size = 10
    nested = (long_name.tobuf(tarfile.GNU_FORMAT) + bytes(512)) * 5000
    assert refusal(tmp_path, nested + tar_of(GOOD)) == {"broken_archive"}


def test_what_is_ambiguous_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, tar_of([*GOOD, (CONFIG, b"{}")])) == {"duplicate_member"}
    assert refusal(tmp_path, tar_of([*GOOD, (f"./{CONFIG}", b"{}")])) == {"duplicate_member"}
    assert refusal(tmp_path, tar_of([*GOOD, (CONFIG.upper(), b"{}")])) == {"case_clash"}
    assert refusal(tmp_path, tar_of([*GOOD, (f"x/{CONFIG}", b"{}")])) == {"ambiguous_archive"}
    assert refusal(tmp_path, tar_of([GOOD[0], ("a.bin", b"x")])) == {"pickle"}


def test_a_broken_header_is_not_the_end(tmp_path: Path) -> None:
    """tarfile stops at one in silence, and what stands behind it would be left out."""
    content = bytearray(tar_of([*GOOD, ("z", b"x")], format=tarfile.USTAR_FORMAT))
    at = content.rindex(b"z\0")
    content[at + 148 : at + 154] = b"777777"
    assert refusal(tmp_path, bytes(content)) == {"broken_archive"}
    whole = tar_of(GOOD, "w:gz")
    assert refusal(tmp_path, whole[:-200]) == {"broken_archive"}
    assert refusal(tmp_path, b"\x1f\x8b\x08" + bytes(100)) == {"broken_archive"}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    changes=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 9000),
    is_packed=st.booleans(),
)
def test_a_damaged_tar_is_refused_or_read_never_a_crash(
    changes: list[tuple[int, int]], cut: int, is_packed: bool, tmp_path: Path
) -> None:
    content = bytearray(tar_of(GOOD, "w:gz" if is_packed else "w"))
    for at, byte in changes:
        content[at % len(content)] = byte
    try:
        try_unpack(tmp_path, bytes(content[: max(0, len(content) - cut)]), MAX_BYTES)
    except FormatError as error:
        assert error.problems
