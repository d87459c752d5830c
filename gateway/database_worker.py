"""`python -m gateway.database_worker READS WRITES`: the process behind
database_process.DatabaseProcess.

Calls come by the sockets with those numbers, and answers go back. It ends with its web process,
having done what that asked of it: nothing else ends it, neither a key of the terminal nor a stop of
the whole group, which the web process outlives to drain its streams.
"""

import copy
import gc
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import django

from tenants.errors import ApiError

NUM_READERS = 2


class Answers:
    """The way back of one socket's calls."""

    def __init__(self, way: Connection) -> None:
        self._way = way
        self._lock = threading.Lock()

    def give(self, number: int, function: Callable[..., Any], args: Any) -> None:
        from gateway.database import guarded

        try:
            answer = (number, False, guarded(function, *args))
        except Exception as error:  # noqa: BLE001 It is the caller's.
            answer = (number, True, with_trace(error))
        try:
            self._send(answer)
        except Exception as error:  # noqa: BLE001 Or its caller would wait for ever.
            self._send((number, True, RuntimeError(f"{answer[2]!r} cannot be sent: {error}")))

    def _send(self, answer: tuple[int, bool, Any]) -> None:
        # The web process may be gone by now.
        with self._lock, suppress(BrokenPipeError):
            self._way.send(answer)


def with_trace(error: Exception) -> Exception:
    """Pickling drops where it was raised. What is an answer to a client needs none."""
    if isinstance(error, ApiError):
        return error
    trace = "".join(traceback.format_exception(error))
    try:
        # Made anew as the other end will: not every class of errors can be.
        copy.copy(error)
    except Exception:  # noqa: BLE001 Whatever its class raises.
        error = RuntimeError(repr(error))
    error.add_note(trace)
    return error


def serve_reads(way: Connection) -> None:
    give = Answers(way).give
    with ThreadPoolExecutor(NUM_READERS) as readers:
        take_each(way, lambda *call: readers.submit(give, *call))


def serve_writes(way: Connection) -> None:
    """One by one, in order, by the thread that hears of them: each is a client's wait."""
    take_each(way, Answers(way).give)


def take_each(way: Connection, take: Callable[..., object]) -> None:
    """take(number, function, args) of every call, until the web process closes its end."""
    while True:
        try:
            call = way.recv()
        except (EOFError, ConnectionResetError):
            return
        take(*call)


def main(reads: int, writes: int) -> None:
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)
    django.setup()
    gc.freeze()
    # A client waits for an opening, which a look-up beside it would hold up for 5 ms.
    sys.setswitchinterval(0.0005)
    with Connection(reads) as beside, Connection(writes) as way:
        reading = threading.Thread(target=serve_reads, args=(beside,))
        reading.start()
        serve_writes(way)
        reading.join()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
