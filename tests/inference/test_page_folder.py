"""Compiled adapters on disk: what is read is what was written, or it is noticed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference.errors import EngineError, ErrorCode
from inference.page_file import PIECE_BYTES, Contents
from inference.page_folder import UNFINISHED_SUFFIX, PageFolder

PAGE_BYTES = 4096
KEY = "k" * 64
CONTENTS = Contents(9, (0.1, 2.0, 1 / 3), frozenset({0, 2}), '{"r": 9, "é": "ü"}')


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def folder_of(path: Path, max_bytes: int = 1 << 30, page_bytes: int = PAGE_BYTES) -> PageFolder:
    return PageFolder(path / "compiled", KEY, page_bytes, max_bytes)


def pages(seed: int, num_pages: int = 2, page_bytes: int = PAGE_BYTES) -> list[memoryview]:
    rows = [bytes([seed + i, *range(256)]) * (page_bytes // 257 + 1) for i in range(num_pages)]
    return [memoryview(bytearray(row[:page_bytes])) for row in rows]


def blank(num_pages: int = 2, page_bytes: int = PAGE_BYTES) -> list[memoryview]:
    return [memoryview(bytearray(page_bytes)) for _ in range(num_pages)]


def read(folder: PageFolder, digest: str, threads: ThreadPoolExecutor) -> list[memoryview] | None:
    """The pages as they come back; None where the file is missing or proves wrong."""
    compiled = folder.open(digest)
    if compiled is None:
        return None
    rows = blank(compiled.file.header.num_pages, compiled.file.header.page_bytes)
    try:
        return rows if folder.read(compiled, rows, threads) else None
    finally:
        compiled.close()


def test_it_works(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    folder = folder_of(tmp_path)
    assert folder.open("d") is None
    assert folder.write("d", CONTENTS, pages(1), threads)
    compiled = folder.open("d")
    assert compiled is not None and compiled.contents == CONTENTS
    compiled.close()
    assert read(folder, "d", threads) == pages(1)
    # Another process of the same layout finds it.
    assert read(folder_of(tmp_path), "d", threads) == pages(1)
    assert [path.suffix for path in folder.folder.iterdir()] == [".pages"]


def test_pages_of_several_pieces(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    page_bytes = PIECE_BYTES + 4096
    folder = folder_of(tmp_path, page_bytes=page_bytes)
    rows = pages(7, 2, page_bytes)
    assert folder.write("d", CONTENTS, rows, threads)
    assert read(folder, "d", threads) == rows


@pytest.mark.parametrize("place", [0, 9, 20, 60, 300, 4095, 4096, 8000, -1])
def test_one_wrong_bit_anywhere_is_noticed_and_the_file_removed(
    tmp_path: Path, threads: ThreadPoolExecutor, place: int
) -> None:
    folder = folder_of(tmp_path)
    folder.write("d", CONTENTS, pages(1), threads)
    path = folder.path_of("d")
    raw = bytearray(path.read_bytes())
    was_padding = place == 4095
    raw[place] ^= 1
    path.write_bytes(raw)
    if was_padding:
        # Between header and pages nothing is read.
        assert read(folder, "d", threads) == pages(1)
        return
    assert read(folder, "d", threads) is None
    assert not path.exists()
    assert folder.write("d", CONTENTS, pages(1), threads)
    assert read(folder, "d", threads) == pages(1)


@pytest.mark.parametrize("size", [0, 7, 48, 200, 4096, 4096 + PAGE_BYTES, -1])
def test_a_file_that_is_cut_off_is_noticed(
    tmp_path: Path, threads: ThreadPoolExecutor, size: int
) -> None:
    folder = folder_of(tmp_path)
    folder.write("d", CONTENTS, pages(1), threads)
    path = folder.path_of("d")
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    assert read(folder, "d", threads) is None


def test_a_file_under_anothers_name_is_noticed(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    folder = folder_of(tmp_path)
    folder.write("d", CONTENTS, pages(1), threads)
    os.link(folder.path_of("d"), folder.path_of("e"))
    assert folder.open("e") is None
    other_layout = PageFolder(folder.folder, KEY[:16] + "x" * 48, PAGE_BYTES, 1 << 30)
    assert other_layout.path_of("d") == folder.path_of("d")
    assert other_layout.open("d") is None


def test_whole_files_of_other_content_are_noticed_within_a_process(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """Whoever may write there could make such a file, but not while the true one is known."""
    folder = folder_of(tmp_path)
    folder.write("d", CONTENTS, pages(1), threads)
    folder_of(tmp_path).write("d", CONTENTS, pages(2), threads)
    assert folder.open("d") is None


def test_links_and_foreign_folders_are_refused(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    folder = folder_of(tmp_path)
    folder.write("d", CONTENTS, pages(1), threads)
    moved = folder.path_of("d").rename(tmp_path / "elsewhere")
    folder.path_of("d").symlink_to(moved)
    assert folder.open("d") is None
    moved.rename(folder.path_of("e"))
    folder.folder.chmod(0o777)
    with pytest.raises(EngineError, match="nobody else may write") as refused:
        folder_of(tmp_path)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="cannot be used"):
        PageFolder(tmp_path / "file", KEY, PAGE_BYTES, 1 << 30)


def test_a_file_that_others_may_write_is_not_believed(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    folder = folder_of(tmp_path)
    folder.write("d", CONTENTS, pages(1), threads)
    folder.path_of("d").chmod(0o666)
    assert folder.open("d") is None


def test_the_least_recently_used_leave_first(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    folder = folder_of(tmp_path, max_bytes=3 * (2 * PAGE_BYTES + 4096))
    for number, digest in enumerate("abc"):
        folder.write(digest, CONTENTS, pages(number), threads)
        past = time.time_ns() - (10 - number) * 10**9
        os.utime(folder.path_of(digest), ns=(past, past))
    assert read(folder, "a", threads) == pages(0)
    folder.write("d", CONTENTS, pages(3), threads)
    assert read(folder, "b", threads) is None
    assert {d for d in "acd" if read(folder, d, threads) is not None} == set("acd")
    assert folder.num_evictions == 1
    assert not folder.write("big", CONTENTS, pages(1, num_pages=99), threads)


def test_a_full_disk_is_no_error(
    tmp_path: Path, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that takes no files any more: nothing is kept, and nobody fails."""
    folder = folder_of(tmp_path)
    folder.folder.rmdir()
    assert not folder.write("d", CONTENTS, pages(1), threads)
    assert "cannot be kept" in caplog.text


def write_over_and_over(path: Path) -> None:
    folder = folder_of(path, max_bytes=2 * (2 * PAGE_BYTES + 4096))
    with ThreadPoolExecutor(1) as threads:
        for round_number in range(60):
            for number, digest in enumerate("abc"):
                found = read(folder, digest, threads)
                assert found in (None, pages(number)), "another's pages"
                if found is None or round_number % 7 == 0:
                    folder.write(digest, CONTENTS, pages(number), threads)


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    """Each writes, reads and makes room under the other's feet; nobody reads half a file."""
    start = multiprocessing.get_context("spawn")
    processes = [start.Process(target=write_over_and_over, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    names = [path.suffix for path in (tmp_path / "compiled").iterdir()]
    assert UNFINISHED_SUFFIX not in names and 1 <= len(names) <= 3


KILLED = """
import sys, time
from pathlib import Path
from inference import page_folder
from tests.inference.test_page_folder import CONTENTS, ThreadPoolExecutor, folder_of, pages

def write_half(fd, header, rows, threads):
    import os
    os.write(fd, b"GRAFTPG1" + bytes(5000))
    print("half", flush=True)
    time.sleep(60)

page_folder.write_pages = write_half
folder_of(Path(sys.argv[1])).write("d", CONTENTS, pages(1), ThreadPoolExecutor(1))
"""


def test_a_writer_that_is_killed_leaves_nothing_that_is_read(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "half\n"
        folder = folder_of(tmp_path)
        assert folder.open("d") is None
        # While it lives its file is left alone.
        folder.write("e", CONTENTS, pages(2), threads)
        assert len(list(folder.folder.glob(f"*{UNFINISHED_SUFFIX}"))) == 1
        writer.send_signal(signal.SIGKILL)
    folder.write("d", CONTENTS, pages(1), threads)
    assert list(folder.folder.glob(f"*{UNFINISHED_SUFFIX}")) == []
    assert read(folder, "d", threads) == pages(1)
