"""What a path becomes, what a count counts, and what is shown of other people's text."""

import io
from pathlib import Path

import pytest

from grafthouse import parts, screen, upload, versions, watching
from grafthouse.failure import Failure


def test_it_works(tmp_path: Path) -> None:
    folder = tmp_path / "support-bot"
    folder.mkdir()
    with pytest.raises(Failure, match=r"no adapter_config\.json and no adapter_model"):
        upload.files_of(folder)
    for name in (upload.CONFIG_FILE, upload.WEIGHTS_FILE):
        (folder / name).touch()
    assert set(upload.files_of(folder)) == {"config", "weights"}
    # The template that it was trained with goes along; the tokenizer does not.
    for name in ("tokenizer_config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    assert set(upload.files_of(folder)) == {"config", "weights", "tokenizer_config.json"}
    assert upload.default_name(folder) == "support-bot"
    archive = tmp_path / "support-bot.tar.gz"
    archive.touch()
    assert upload.files_of(archive) == {"archive": archive}
    assert upload.default_name(archive) == "support-bot"


@pytest.mark.parametrize(
    ("name", "said"), [("x.gguf", "or an archive of it"), ("absent", "neither")]
)
def test_another_file_is_refused_with_what_is_expected(
    tmp_path: Path, name: str, said: str
) -> None:
    if name != "absent":
        (tmp_path / name).touch()
    with pytest.raises(Failure, match=said):
        upload.files_of(tmp_path / name)


def test_every_byte_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    moved: list[int] = []
    with (tmp_path / "file").open("rb") as file:
        counted = parts.Counted(file, moved.append)
        assert io.BufferedReader(counted).raw is counted
        while counted.read(65_536):
            pass
    assert moved == [65_536, 34_464, 0]


def test_control_characters_are_shown_and_do_not_act(capsys: pytest.CaptureFixture[str]) -> None:
    assert screen.plain("a\x1b[2Jb\x07\tc\nd") == "a\\x1b[2Jb\\x07\tc\nd"
    screen.fail("one [red]line\x1b[0m\nand more")
    shown = capsys.readouterr().err
    assert shown == "grafthouse: one [red]line\\x1b[0m and more\n"


def version(number: int, state: str, activated_at: str | None) -> dict[str, object]:
    return {"number": number, "state": state, "activated_at": activated_at}


def test_rolling_back_goes_by_time_and_not_by_number() -> None:
    rows = [
        version(4, "rejected", None),
        version(3, "ready", "2026-01-02T00:00:00Z"),
        version(2, "active", "2026-01-04T00:00:00Z"),
        version(1, "ready", "2026-01-03T00:00:00Z"),
        version(0, "ready", None),
    ]
    assert versions.former("bot", rows) == 1
    with pytest.raises(Failure, match="no version that was active before"):
        versions.former("bot", rows[:1])


def test_rows_already_shown_are_not_shown_again() -> None:
    rows = [{"at": 1, "x": 1}, {"at": 1, "x": 2}, {"at": 1, "x": 3}]
    assert watching.newer(rows, rows[1:2]) == rows[2:]
    assert watching.newer(rows, []) == rows
    # So much happened that the last one seen is no longer on the page.
    assert watching.newer(rows, [{"at": 0}]) == rows
