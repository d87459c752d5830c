"""The engine in a process of its own, which serves its front (wire.py).

The front starts it as `python -m inference.engine_process FD`; FD is one end of a socket pair. It
ends when the front says so or is gone. One thread receives, the engine's loop is another's, files
are read by a third, and one sends: all events of a step cross in one message.
"""

import logging
import queue
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from inference.errors import EngineError, ErrorCode
from inference.request import GenerateRequest
from inference.wire import METHODS, Abort, Call, Died, News, Refused, Reply, Start, Started, Submit

if TYPE_CHECKING:
    from inference.engine import Engine

log = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def main(arguments: list[str]) -> int:
    """Exit status: 0 after an order or when the front is gone, 1 otherwise."""
    # A signal to the process group is the front's to answer: it drains, then says so.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    with Connection(int(arguments[0])) as connection:
        start: Start = connection.recv()
        try:
            engine = _load(start)
        except (EngineError, OSError) as error:
            connection.send(error)
            return 1
        digests = {name: engine.resolve_adapter(name) for name, _ in start.adapters}
        connection.send(Started(engine.max_model_len, digests))
        return _Host(engine, connection).serve()


def _load(start: Start) -> "Engine":
    """Raises EngineError or OSError: what in the model or an adapter cannot be served."""
    # Here, because it imports torch, which takes seconds that the front does not wait for.
    from inference.engine import Engine

    engine = Engine(start.config)
    for name, path in start.adapters:
        info = engine.load_adapter(name, path)
        log.info("adapter %s: rank %d, digest %s", name, info.rank, info.digest)
    return engine


class _Host:
    def __init__(self, engine: "Engine", connection: Connection) -> None:
        self._engine = engine
        self._connection = connection
        self._outbox: queue.SimpleQueue[News | None] = queue.SimpleQueue()
        self._has_died = False

    def serve(self) -> int:
        threads = [threading.Thread(target=work) for work in (self._run, self._send)]
        for thread in threads:
            thread.start()
        with ThreadPoolExecutor(1, "files") as files, ThreadPoolExecutor(1, "state") as states:
            self._receive(files, states)
            self._engine.stop()
        for thread in threads:
            thread.join()
        return int(self._has_died)

    def _run(self) -> None:
        try:
            self._engine.run()
        # Whatever it was: say so, and let the front answer everybody.
        except Exception:
            log.exception("the engine's loop died")
            self._has_died = True
            self._outbox.put(Died())
        finally:
            self._outbox.put(None)

    def _send(self) -> None:
        """All that waits, as one message; ends with the loop."""
        ends = False
        while not ends:
            news = [self._outbox.get()]
            while not self._outbox.empty():
                news.append(self._outbox.get())
            ends = None in news
            try:
                self._connection.send([item for item in news if item is not None])
            except OSError:
                # The front is gone: the receiving thread learns it too.
                return

    def _receive(self, files: ThreadPoolExecutor, states: ThreadPoolExecutor) -> None:
        """Until the front hangs up."""
        while True:
            try:
                message: Submit | Abort | Call = self._connection.recv()
            except (EOFError, OSError):
                return
            if isinstance(message, Submit):
                self._submit(message.request)
            elif isinstance(message, Abort):
                self._engine.abort(message.request_id)
            else:
                # A state is asked for while an adapter loads.
                pool = files if message.method.endswith("_adapter") else states
                pool.submit(self._call, message)

    def _submit(self, request: GenerateRequest) -> None:
        try:
            self._engine.submit(request, self._outbox.put)
        except EngineError as error:
            self._outbox.put(Refused(request.request_id, error))

    def _call(self, call: Call) -> None:
        try:
            assert call.method in METHODS, call.method
            method: Callable[..., Any] = getattr(self._engine, call.method)
            self._outbox.put(Reply(call.number, method(*call.arguments)))
        except EngineError as refusal:
            self._outbox.put(Reply(call.number, refusal))
        except Exception:
            log.exception("%s failed", call.method)
            error = EngineError(ErrorCode.INTERNAL, f"{call.method} failed")
            self._outbox.put(Reply(call.number, error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
