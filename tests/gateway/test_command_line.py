"""`grafthouse upload` in parts against a real web process, over lines that break."""

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from adapters.models import AdapterVersion, Upload, UploadPart
from grafthouse import parts, upload
from grafthouse.account import Account
from grafthouse.client import House
from grafthouse.failure import Exit, Failure
from tenants.scope import tenant_scope
from tests.gateway.conftest import Customer, Stack

PART_BYTES = 100_000
NUM_BYTES = 350_000


@dataclass
class Line:
    """Carries bytes to the house, num_bytes so far; breaks when so many have passed, each once.

    damage_at: when so many have passed, one of them is another.
    """

    house_port: int
    breaks: list[int] = field(default_factory=list)
    damage_at: int = 0
    num_bytes: int = 0
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        with suppress(OSError), ThreadPoolExecutor(32) as pool:
            while True:
                client = self.listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self.house_port))
                pool.submit(self._carry, client, server, True)
                pool.submit(self._carry, server, client, False)

    def _carry(self, source: socket.socket, target: socket.socket, is_up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self.num_bytes += len(data) * is_up
                if self.damage_at and self.num_bytes > self.damage_at:
                    data = data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]
                    self.damage_at = 0
                if self.breaks and self.num_bytes > self.breaks[0]:
                    self.breaks.pop(0)
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def line(stack: Stack) -> Iterator[Line]:
    line = Line(urlsplit(stack.web.url).port or 0)
    thread = threading.Thread(target=line.serve)
    thread.start()
    yield line
    line.listener.shutdown(socket.SHUT_RDWR)
    line.listener.close()
    thread.join()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (parts, upload):
        monkeypatch.setattr(room, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(parts, "WAITS_S", (0.01, 0.01, 0.01))


@pytest.fixture
def customer(stack: Stack) -> Customer:
    return stack.make_customer(("adapters",))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    path = tmp_path / "support-bot.zip"
    path.write_bytes(os.urandom(NUM_BYTES))
    return {"archive": path}


def send(url: str, customer: Customer, files: dict[str, Path]) -> tuple[dict[str, Any], int]:
    """The version, and how many bytes the bar has counted."""
    moved: list[int] = []
    with House(Account(url, customer.api_key)) as house:
        version = upload.send(house, "support-bot", files, moved.append)
    return version, sum(moved)


def test_a_line_that_breaks_is_taken_up_again(
    customer: Customer, files: dict[str, Path], line: Line
) -> None:
    line.breaks = [150_000, 290_000, 330_000]
    version, num_moved = send(line.url, customer, files)
    assert (version["number"], version["state"]) == (1, "uploaded")
    assert not line.breaks and num_moved == NUM_BYTES
    with tenant_scope(customer.tenant.id):
        assert AdapterVersion.objects.get().size_bytes == NUM_BYTES
        sizes = UploadPart.objects.order_by("number").values_list("number", "num_bytes")
        assert list(sizes) == [(1, 100_000), (2, 100_000), (3, 100_000), (4, 50_000)]


def test_the_same_command_goes_on(
    customer: Customer, files: dict[str, Path], line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "WAITS_S", ())
    line.breaks = [270_000]
    with pytest.raises(Failure, match="the same command goes on") as caught:
        send(line.url, customer, files)
    assert caught.value.code == Exit.UNREACHABLE
    before = line.num_bytes
    version, num_moved = send(line.url, customer, files)
    assert version["number"] == 1 and num_moved == NUM_BYTES
    # Two of four parts had arrived.
    assert 150_000 < line.num_bytes - before < 170_000
    with tenant_scope(customer.tenant.id):
        assert Upload.objects.count() == 1


def test_other_bytes_of_the_same_size_are_another_upload(
    stack: Stack, customer: Customer, files: dict[str, Path], line: Line
) -> None:
    line.breaks = [270_000] * 9
    with pytest.raises(Failure):
        send(line.url, customer, files)
    files["archive"].write_bytes(os.urandom(NUM_BYTES))
    assert send(stack.web.url, customer, files)[0]["number"] == 1
    with tenant_scope(customer.tenant.id):
        assert list(Upload.objects.values_list("status", flat=True)) == ["completed", "pending"]


def test_damaged_bytes_are_sent_again(
    customer: Customer, files: dict[str, Path], line: Line
) -> None:
    line.damage_at = 150_000
    version, num_moved = send(line.url, customer, files)
    assert (version["state"], num_moved, line.damage_at) == ("uploaded", NUM_BYTES, 0)
    assert line.num_bytes > NUM_BYTES + PART_BYTES


def test_a_refusal_is_not_repeated(stack: Stack, files: dict[str, Path], line: Line) -> None:
    small = stack.make_customer(("adapters",), max_upload_bytes=200_000)
    with pytest.raises(Failure, match="the plan allows 200000") as caught:
        send(line.url, small, files)
    assert caught.value.code == Exit.REFUSED and line.num_bytes < 5_000
