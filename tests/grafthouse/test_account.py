"""Which key goes where, what is kept, and what of it may be seen."""

import json
import stat
from pathlib import Path

import pytest

from grafthouse import account
from grafthouse.account import Account
from grafthouse.failure import Exit, Failure

KEY = "gh-abcdEFGH12345678-" + "s" * 43


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (account.URL_VARIABLE, account.KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_it_works(home: Path) -> None:
    with pytest.raises(Failure, match="grafthouse login") as caught:
        account.current()
    assert caught.value.code == Exit.NOT_ALLOWED
    path = account.keep(Account("https://house.example", KEY))
    assert home in path.parents and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert account.current() == Account("https://house.example", KEY)
    assert account.forget() and not account.forget()


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    account.keep(Account("https://house.example", KEY))
    monkeypatch.setenv(account.KEY_VARIABLE, "gh-other-key")
    monkeypatch.setenv(account.URL_VARIABLE, "https://other.example/")
    assert account.current() == Account("https://other.example", "gh-other-key")


def test_a_kept_key_is_not_sent_to_another_house(monkeypatch: pytest.MonkeyPatch) -> None:
    account.keep(Account("https://house.example", KEY))
    monkeypatch.setenv(account.URL_VARIABLE, "https://evil.example")
    with pytest.raises(Failure, match="set GRAFTHOUSE_API_KEY too"):
        account.current()


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps({"url": "https://x"})])
def test_a_broken_login_file_is_named(text: str) -> None:
    account.keep(Account("https://house.example", KEY)).write_text(text)
    with pytest.raises(Failure, match=r"login\.json cannot be read"):
        account.current()


def test_the_secret_is_never_shown() -> None:
    assert account.masked(KEY) == "gh-abcdEFGH12345678-…"
    assert "sss" not in repr(Account("https://house.example", KEY))
    assert "no-dashes"[6:] not in account.masked("nodashesatall")
    with pytest.raises(Failure, match="expected http"):
        account.checked_url("house.example")
