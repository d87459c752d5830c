"""The engine as its front has it: in another process, whose loop no stream takes time from."""

import itertools
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

from inference.config import EngineConfig
from inference.errors import EngineError, ErrorCode
from inference.request import (
    Aborted,
    AdapterInfo,
    EngineState,
    Event,
    Failed,
    Finished,
    GenerateRequest,
)
from inference.stats import EngineStats
from inference.wire import Abort, Call, Died, News, Refused, Reply, Start, Started, Submit

log = logging.getLogger(__name__)

OnEvent = Callable[[Event | EngineError], None]
TERMINAL = (Finished, Aborted, Failed)
CALL_TIMEOUT_S = 30.0
END_TIMEOUT_S = 10.0


class RemoteEngine:
    """Owns the process: start() once, then stop() once. Any thread calls the rest.

    Names are known here: all loads and unloads go through this object.
    """

    def __init__(self, config: EngineConfig, adapters: tuple[tuple[str, str], ...]) -> None:
        self._start_with = Start(config, adapters)
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "inference.engine_process", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self._connection = Connection(ours.detach())
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._listeners: dict[str, OnEvent] = {}
        self._calls: dict[int, Future[Any]] = {}
        self._digests: dict[str, str] = {}
        self._is_stopping = False
        # Set before open calls are failed: a call is made known before this is read.
        self._is_deaf = False
        self.max_model_len = 0

    def start(self, on_death: Callable[[], None]) -> None:
        """Waits until the model is loaded. on_death: called once if the process ends unasked, by a
        thread of ours. Raises EngineError or OSError: what cannot be served.
        """
        try:
            self._connection.send(self._start_with)
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            message = "loading failed; the lines above say how"
            raise EngineError(ErrorCode.INTERNAL, message) from error
        if not isinstance(answer, Started):
            raise answer
        self.max_model_len = answer.max_model_len
        self._digests.update(answer.digests)
        receive = threading.Thread(target=self._receive, args=(on_death,), daemon=True)
        receive.start()

    def submit(self, request: GenerateRequest, on_event: OnEvent) -> None:
        """A refusal comes as an EngineError to on_event. Raises OVERLOADED: the engine is gone."""
        self._listeners[request.request_id] = on_event
        try:
            self._send(Submit(request))
        except EngineError:
            self._listeners.pop(request.request_id, None)
            raise

    def abort(self, request_id: str) -> None:
        if request_id not in self._listeners:
            return
        try:
            self._send(Abort(request_id))
        except EngineError:
            self._listeners.pop(request_id, None)

    def load_adapter(self, name: str, path: str, pinned: bool = False) -> AdapterInfo:
        info: AdapterInfo = self._call("load_adapter", name, path, pinned, timeout_s=None)
        self._digests[name] = info.digest
        return info

    def unload_adapter(self, name: str) -> None:
        self._call("unload_adapter", name, timeout_s=None)
        self._digests.pop(name, None)

    def resolve_adapter(self, name: str) -> str:
        digest = self._digests.get(name)
        if digest is None:
            message = f"no adapter named {name!r} is loaded"
            raise EngineError(ErrorCode.MODEL_NOT_FOUND, message, "model")
        return digest

    def state(self) -> EngineState:
        state: EngineState = self._call("state", timeout_s=CALL_TIMEOUT_S)
        return state

    def stats(self) -> EngineStats:
        stats: EngineStats = self._call("stats", timeout_s=CALL_TIMEOUT_S)
        return stats

    def stop(self) -> None:
        """Hangs up; the engine ends what runs and goes. One that does not is killed."""
        self._is_stopping = True
        if not self.max_model_len:
            # It loads, and has nothing to end in order.
            self._process.kill()
        # Also wakes the thread that receives.
        with socket.socket(fileno=socket.dup(self._connection.fileno())) as both_ways:
            both_ways.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            log.warning("the engine did not end in %.0f s: it is killed", END_TIMEOUT_S)
            self._process.kill()
            self._process.wait()

    def _send(self, message: Submit | Abort | Call) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except OSError as error:
            raise _gone() from error

    def _call(self, method: str, *arguments: Any, timeout_s: float | None) -> Any:
        number, reply = next(self._numbers), Future[Any]()
        self._calls[number] = reply
        try:
            if self._is_deaf:
                raise _gone()
            self._send(Call(number, method, arguments))
            return reply.result(timeout_s)
        except TimeoutError as error:
            message = f"the engine did not answer {method} in {timeout_s:.0f} s"
            raise EngineError(ErrorCode.INTERNAL, message) from error
        finally:
            self._calls.pop(number, None)

    def _receive(self, on_death: Callable[[], None]) -> None:
        try:
            while True:
                for news in self._connection.recv():
                    if isinstance(news, Died):
                        return
                    self._take(news)
        except (EOFError, OSError):
            return
        finally:
            self._is_deaf = True
            self._fail_calls()
            if not self._is_stopping:
                on_death()

    def _take(self, news: News) -> None:
        if isinstance(news, Reply):
            self._reply(news)
        elif isinstance(news, Refused):
            listener = self._listeners.pop(news.request_id, None)
            if listener is not None:
                listener(news.error)
        elif not isinstance(news, Died):
            ends = isinstance(news, TERMINAL)
            find = self._listeners.pop if ends else self._listeners.get
            listener = find(news.request_id, None)
            if listener is not None:
                listener(news)

    def _reply(self, reply: Reply) -> None:
        waiting = self._calls.get(reply.number)
        if waiting is None:
            return
        if isinstance(reply.result, EngineError):
            waiting.set_exception(reply.result)
        else:
            waiting.set_result(reply.result)

    def _fail_calls(self) -> None:
        for waiting in list(self._calls.values()):
            if not waiting.done():
                waiting.set_exception(_gone())


def _gone() -> EngineError:
    return EngineError(ErrorCode.OVERLOADED, "The engine has stopped; the server restarts.")
