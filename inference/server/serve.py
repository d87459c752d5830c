"""The process: listens at once (/ready says 503), loads, serves, and ends in order on SIGTERM.

Listening before loading makes a taken port a matter of milliseconds, and lets a supervisor tell a
process that loads (/health 200) from one that hangs.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import signal
import sys
import threading
import time
from typing import Any

from aiohttp import web

from inference.config import ServeConfig
from inference.engine_process import LOG_FORMAT
from inference.errors import EngineError, ErrorCode
from inference.metrics import FrontMetrics
from inference.server.announce import announce_forever
from inference.server.app import make_app
from inference.server.bridge import Bridge
from inference.server.model_folder import ModelFolder
from inference.server.remote_engine import RemoteEngine
from inference.server.replica import DRAINING, Loaded, Replica
from inference.server.usage_file import UsageFile
from inference.server.usage_log import UsageLog

log = logging.getLogger(__name__)

EXIT_BAD_START = 2
EXIT_ENGINE_DIED = 1


def serve(config: ServeConfig) -> int:
    """Runs until a signal. The exit status: 0 after a signal, 2 when it could not start."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    return asyncio.run(_serve(config))


def _fail(message: str) -> int:
    print(f"python -m inference serve: error: {message}", file=sys.stderr, flush=True)
    return EXIT_BAD_START


async def _serve(config: ServeConfig) -> int:
    try:
        process = Process(config)
    except OSError as error:
        return _fail(f"--usage-file {config.usage_file}: {error.strerror or error}")
    try:
        await process.listen()
    except OSError as error:
        return _fail(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}")
    try:
        return await process.run()
    finally:
        await process.close()


class Process:
    """Owns the sockets and the engine's process; close() gives all of them back.

    Raises OSError where the file for usage cannot be used.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        file = None if config.usage_file is None else UsageFile(config.usage_file)
        self.replica = Replica(config.base_name, config.adapter_dirs, Bridge(), FrontMetrics())
        self.replica.usage_log = UsageLog(file)
        # handler_cancellation: a client that leaves cancels its handler; that aborts its sequences.
        self._runner = web.AppRunner(
            make_app(self.replica),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=1.0,
            lingering_time=1.0,
        )
        self._site: web.TCPSite | None = None
        self._engine: RemoteEngine | None = None
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._engine_died = False
        self._is_hurried = False

    @property
    def port(self) -> int:
        """The port listened on, also when the system chose it."""
        return int(self._runner.addresses[0][1])

    async def listen(self) -> None:
        """Raises OSError when the address is taken or not ours."""
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self._config.host, self._config.port)
        await self._site.start()

    async def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal)
        loading, stopping = self._start_load(), asyncio.create_task(self._stop.wait())
        first: set[asyncio.Future[Any]] = {loading, stopping}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            return 0
        try:
            self.replica.loaded = loading.result()
        except (EngineError, OSError) as error:
            return _fail(_one_line(error))
        where = f"http://{self._config.host}:{self.port}"
        print(f"ready: {self._config.base_name} on {where}", flush=True)
        announcing = self._announce()
        await stopping
        if announcing is not None:
            announcing.cancel()
        if not self._engine_died:
            await self._drain()
        return EXIT_ENGINE_DIED if self._engine_died else 0

    async def close(self) -> None:
        self.replica.is_draining = True
        await self._runner.cleanup()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.stop)
        await asyncio.to_thread(self.replica.usage_log.close)

    def _announce(self) -> "asyncio.Task[None] | None":
        if self._config.announcement is None:
            return None
        return asyncio.create_task(announce_forever(self._config.announcement))

    def _on_signal(self) -> None:
        """The first asks to end in order, the second to end now."""
        self._is_hurried = self._stop.is_set()
        self._stop.set()

    def _start_load(self) -> "asyncio.Future[Loaded]":
        """In a daemon thread: an order to stop does not wait for gigabytes to be read."""
        loaded: concurrent.futures.Future[Loaded] = concurrent.futures.Future()

        def load() -> None:
            try:
                loaded.set_result(self._load())
            except (EngineError, OSError) as error:
                loaded.set_exception(error)
            except Exception:
                log.exception("loading failed")
                message = "loading failed; the lines above say how"
                loaded.set_exception(EngineError(ErrorCode.INTERNAL, message))

        threading.Thread(target=load, name="load", daemon=True).start()
        return asyncio.wrap_future(loaded)

    def _load(self) -> Loaded:
        """Raises EngineError: what in the model or an adapter cannot be served."""
        folder = ModelFolder.load(self._config.engine.model_path)
        self._engine = engine = RemoteEngine(self._config.engine, self._config.lora_paths)
        engine.start(self._tell_of_death)
        self.replica.metrics.watch(engine)
        return Loaded(folder, engine, engine.max_model_len)

    def _tell_of_death(self) -> None:
        """By a thread of the engine's; the event loop may be over."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_engine_death)

    def _on_engine_death(self) -> None:
        self._engine_died = True
        self.replica.is_draining = True
        error = EngineError(ErrorCode.INTERNAL, "The engine stopped; the server restarts.")
        self.replica.bridge.fail_all(error)
        self._stop.set()

    async def _drain(self) -> None:
        """No new connections, no new requests; running ones have grace_s, then an error."""
        log.info("stopping: %d requests are running", self.replica.bridge.num_open)
        self.replica.is_draining = True
        if self._site is not None:
            await self._site.stop()
        deadline = time.monotonic() + self._config.grace_s
        while self.replica.bridge.num_open and time.monotonic() < deadline:
            if self._is_hurried:
                break
            await asyncio.sleep(0.05)
        self.replica.bridge.fail_all(EngineError(ErrorCode.OVERLOADED, DRAINING))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
