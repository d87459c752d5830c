"""Which house, and by which key: the environment first, then what `grafthouse login` kept."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from grafthouse.failure import Exit, Failure

DEFAULT_URL = "http://127.0.0.1:8000"
URL_VARIABLE = "GRAFTHOUSE_URL"
KEY_VARIABLE = "GRAFTHOUSE_API_KEY"


@dataclass(frozen=True)
class Account:
    url: str
    api_key: str

    def __repr__(self) -> str:
        # A traceback with local variables, or a debugger's, must not show the key.
        return f"Account({self.url}, {masked(self.api_key)})"


def masked(api_key: str) -> str:
    """The public part: what the list of keys shows too."""
    head = api_key.rpartition("-")[0] or api_key[:6]
    return f"{head[:20]}-…"


def login_file() -> Path:
    return Path(typer.get_app_dir("grafthouse")) / "login.json"


def current() -> Account:
    """Raises Failure when there is no key."""
    kept = _kept()
    api_key = os.environ.get(KEY_VARIABLE, "").strip() or (kept.api_key if kept else "")
    url = os.environ.get(URL_VARIABLE, "").strip() or (kept.url if kept else DEFAULT_URL)
    if not api_key:
        raise Failure(f"No key: run `grafthouse login`, or set {KEY_VARIABLE}.", Exit.NOT_ALLOWED)
    if kept and url != kept.url and api_key == kept.api_key:
        # A variable that names another house must not send this house's key there.
        raise Failure(
            f"{URL_VARIABLE} is {url}, but the kept key is of {kept.url}: set {KEY_VARIABLE} too.",
            Exit.NOT_ALLOWED,
        )
    return Account(checked_url(url), api_key)


def checked_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise Failure(f"{url!r} is no URL of a house: expected http://… or https://…", Exit.USAGE)
    return url.rstrip("/")


def _kept() -> Account | None:
    path = login_file()
    try:
        found = json.loads(path.read_text())
        return Account(str(found["url"]), str(found["api_key"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path} cannot be read ({error}): run `grafthouse login`.") from error


def keep(account: Account) -> Path:
    """Readable by this user only, from its first byte on."""
    path = login_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        json.dump(asdict(account), file)
    fresh.replace(path)
    return path


def forget() -> bool:
    """Whether there was anything."""
    try:
        login_file().unlink()
    except FileNotFoundError:
        return False
    return True
