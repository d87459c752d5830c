"""A replica announces itself to a house: a real process, and a socket that hears it."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from inference.config import parse_arguments
from inference.server import announce
from tests.inference.server.conftest import start_replica, stop_replica
from tests.inference.server.test_process import refusal


class House(ThreadingHTTPServer):
    """Hears announcements; statuses: what it answers, the last one for ever."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Door)
        self.heard: list[tuple[str, str, Any]] = []
        self.statuses = [200]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Door(BaseHTTPRequestHandler):
    server: House

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.heard.append((self.path, self.headers["authorization"], body))
        statuses = self.server.statuses
        self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def house() -> Iterator[House]:
    with House() as house:
        threading.Thread(target=house.serve_forever, daemon=True).start()
        yield house
        house.shutdown()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("secret\n")
    return tmp_path / "token"


def test_it_works(base: Path, house: House, token_file: Path) -> None:
    flags = ["--announce-to", house.url + "/", "--announce-token-file", str(token_file)]
    own = ["--announce-url", "http://replica-3:8100"]
    replica = start_replica("--model-path", str(base), *flags, *own)
    deadline = time.monotonic() + 10
    while not house.heard and time.monotonic() < deadline:
        time.sleep(0.02)
    assert stop_replica(replica) == 0
    body = {"url": "http://replica-3:8100", "engine": "grafthouse"}
    assert house.heard[0] == ("/api/fleet/announce/", "Bearer secret", body)


async def test_a_house_that_is_away_or_refuses_is_asked_again(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    caplog.set_level("INFO")
    monkeypatch.setattr(announce, "INTERVAL_S", 0.02)
    house.statuses = [503, 503, 401, 200]
    what = announce.Announcement(house.url, "http://r:1", "secret")
    task = asyncio.create_task(announce.announce_forever(what))
    while len(house.heard) < 8:
        await asyncio.sleep(0.01)
    # Said when it changes, not each time.
    said = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert [word.split()[0] for word in said if word] == ["503", "401", "taken"]
    task.cancel()
    nobody = announce.Announcement("http://127.0.0.1:1", "http://r:1", "secret")
    task = asyncio.create_task(announce.announce_forever(nobody))
    await asyncio.sleep(0.2)
    assert not task.done()
    task.cancel()


@pytest.mark.parametrize(
    "flags, word",
    [
        (["--announce-to", "house"], "http"),
        (["--announce-to", "http://h:1", "--announce-url", "http://r:1/v1"], "--announce-url"),
        (["--announce-to", "http://h:1"], "--announce-token-file"),
        (["--announce-to", "http://h:1", "--announce-token-file", "/none"], "/none"),
    ],
)
def test_a_wrong_flag_is_one_line(
    capsys: pytest.CaptureFixture[str], base: Path, flags: list[str], word: str
) -> None:
    assert word in refusal(capsys, "serve", "--model-path", str(base), *flags)


def test_its_own_address_is_known_or_asked_for(
    capsys: pytest.CaptureFixture[str], base: Path, token_file: Path
) -> None:
    flags = ["serve", "--model-path", str(base), "--announce-to", "http://h:1"]
    flags += ["--announce-token-file", str(token_file)]
    found = parse_arguments([*flags, "--port", "8100"]).announcement
    assert found is not None
    assert (found.own_url, found.token) == ("http://127.0.0.1:8100", "secret")
    for unknown in (["--port", "0"], ["--host", "0.0.0.0"]):
        assert "--announce-url" in refusal(capsys, *flags, *unknown)
