"""How a WebSocket's connection ends: RFC 6455 §7.1.1, seen from the bytes.

The frames are those of `websockets`; when TCP is closed, a raw socket tells.
"""

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from tests.gateway.conftest import Customer, Stack
from tests.gateway.test_connection import dialled

# Of ours for a client that does not answer a close frame, and of nobody's for one that does.
UNANSWERED_S = 2.0
SOON_S = 1.0


class Client:
    """Frames on a raw socket; a close frame is answered by flush() alone."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self.protocol = ClientProtocol(parse_uri("ws://x/ws/v1/chat"))

    def greet(self) -> None:
        self.protocol.send_request(self.protocol.connect())
        self.flush()
        assert isinstance(self.next(), Response)

    def flush(self) -> None:
        """Send what the protocol has to say: the answer to a close frame, too."""
        self.raw.sendall(b"".join(self.protocol.data_to_send()))

    def say(self, text: str) -> None:
        self.protocol.send_text(text.encode())
        self.flush()

    def next(self) -> Frame | Response:
        while not (events := self.protocol.events_received()):
            self.protocol.receive_data(self.raw.recv(65536))
        [event] = events
        assert isinstance(event, (Frame, Response))
        return event

    def close_code(self) -> int:
        frame = self.next()
        assert isinstance(frame, Frame) and frame.opcode is Opcode.CLOSE
        return int.from_bytes(frame.data[:2], "big")

    def seconds_until_end(self) -> float:
        """Until the server has closed TCP; nothing comes before that."""
        begin = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            assert self.raw.recv(65536) == b""
        return time.monotonic() - begin


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with dialled(stack.web) as raw:
        client = Client(raw)
        client.greet()
        yield client


def test_it_works(client: Client) -> None:
    """The client answers our close frame: TCP is over at once."""
    client.say("no JSON")
    assert client.close_code() == 4400
    client.flush()
    assert client.seconds_until_end() < SOON_S


def test_a_close_frame_that_is_not_answered(client: Client) -> None:
    client.say("no JSON")
    assert client.close_code() == 4400
    assert UNANSWERED_S - 0.5 < client.seconds_until_end() < UNANSWERED_S + SOON_S


def test_a_client_that_goes_on_sending_instead(client: Client) -> None:
    client.say("no JSON")
    assert client.close_code() == 4400
    begin = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < begin + UNANSWERED_S + SOON_S:
            client.raw.sendall(Frame(Opcode.TEXT, b"more").serialize(mask=True))
            time.sleep(0.02)
    assert UNANSWERED_S - 0.5 < time.monotonic() - begin < UNANSWERED_S + SOON_S


def test_both_close_at_once(client: Client) -> None:
    """Our frame and theirs cross."""
    client.protocol.send_text(b"no JSON")
    client.protocol.send_close(1000)
    client.flush()
    client.close_code()
    assert client.seconds_until_end() < SOON_S


def test_the_client_closes(client: Client) -> None:
    client.protocol.send_close(1000)
    client.flush()
    assert client.close_code() == 1000
    assert client.seconds_until_end() < SOON_S


def test_the_client_just_ends(client: Client) -> None:
    """Its half of TCP is shut without a close frame."""
    client.raw.shutdown(socket.SHUT_WR)
    assert client.seconds_until_end() < SOON_S


def test_a_known_caller(client: Client, acme: Customer) -> None:
    client.say(json.dumps({"type": "auth", "api_key": acme.api_key}))
    client.next()
    client.say("{")
    assert client.close_code() == 4400
    client.flush()
    assert client.seconds_until_end() < SOON_S
