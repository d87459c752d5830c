"""Brings a house on one machine up, step by step, and tells a person what it does."""

import asyncio
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp
from asgiref.sync import sync_to_async
from django.conf import settings
from redis.asyncio import Redis
from redis.exceptions import RedisError

from adapters.models import Placement, PlacementState
from gateway import demo_access, embedded
from gateway.embedded import Addresses, CannotServe
from gateway.supervisor import Supervisor

START_TIMEOUT_S = 300.0
# A child that ends this often before it is ready will not get ready.
MAX_EARLY_ENDS = 3
POLL_INTERVAL_S = 0.1
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=2)
NUM_TAIL_LINES = 5


class Progress:
    """One line a stage, with the seconds since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self._started:5.1f} s] {line}", flush=True)


class House:
    def __init__(self, progress: Progress, listener: socket.socket) -> None:
        self._progress, self._listener = progress, listener
        self._addresses = embedded.choose_addresses(settings.VAR_DIR)
        self._supervisor = Supervisor(settings.VAR_DIR / "log", settings.ROOT_DIR, progress.say)

    async def live(self) -> None:
        """Until SIGINT, SIGTERM or SIGHUP. Raises CannotServe when a part does not come up."""
        stopping = asyncio.create_task(told_to_stop().wait())
        starting = asyncio.create_task(self._start())
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({starting, watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            if starting.done():
                print(demo_access.welcome(is_new=starting.result()), flush=True)
                watching.cancel()
                await stopping
        finally:
            starting.cancel()
            watching.cancel()
            self._progress.say("stopping")
            await self._supervisor.stop()
            self._progress.say("stopped")

    async def _start(self) -> bool:
        """Whether the demo's credentials are new."""
        addresses, supervisor = self._addresses, self._supervisor
        if addresses.store_port:
            supervisor.start(embedded.store_child(addresses, settings.VAR_DIR))
        if addresses.replica_port:
            supervisor.start(embedded.replica_child(addresses))
        await self._wait("valkey", partial(answers_ping, addresses.redis_url))
        workers = embedded.worker_children(addresses)
        for child in (*embedded.web_children(addresses, self._listener), *workers):
            supervisor.start(child)
        supervisor.start(embedded.beat_child(addresses))
        async with aiohttp.ClientSession(timeout=REQUEST_TIMEOUT) as http:
            for url in addresses.replica_urls:
                await self._wait("replica", partial(is_ok, http, f"{url}/ready"))
            await self._wait("web", partial(is_ok, http, f"{embedded.own_url()}/readyz"))
            is_new = await self._seed()
            await self._wait("adapters", partial(holds_all_adapters, http, addresses))
        return is_new

    async def _watch(self) -> None:
        """Raises CannotServe when a child keeps ending while the house starts."""
        while True:
            for name in self._supervisor.names():
                if self._supervisor.num_ends(name) >= MAX_EARLY_ENDS:
                    log = self._supervisor.log_path(name)
                    tail = log.read_text(errors="replace").splitlines()[-NUM_TAIL_LINES:]
                    raise CannotServe("\n  ".join([f"{name} keeps ending; see {log}:", *tail]))
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _wait(self, name: str, is_ready: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not await is_ready():
            if time.monotonic() > deadline:
                logs = self._supervisor.log_path(name).parent
                raise CannotServe(f"{name} not ready after {START_TIMEOUT_S:g} s; see {logs}")
            await asyncio.sleep(POLL_INTERVAL_S)
        self._progress.say(f"{name} ready")

    async def _seed(self) -> bool:
        is_new = not demo_access.path().exists()
        end = await self._supervisor.run(embedded.seed_child(self._addresses))
        if end != "status 0":
            raise CannotServe(f"seeding failed ({end}); see {self._supervisor.log_path('seed')}")
        return is_new


def told_to_stop() -> asyncio.Event:
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    return told


async def answers_ping(redis_url: str) -> bool:
    async with Redis.from_url(redis_url) as store:
        try:
            return bool(await store.ping())
        except (RedisError, OSError):
            return False


async def is_ok(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def holds_all_adapters(http: aiohttp.ClientSession, addresses: Addresses) -> bool:
    """Whether each replica reports what the reconciler wants it to hold."""
    for url in addresses.replica_urls:
        try:
            async with http.get(f"{url}/state") as answer:
                held = {adapter["digest"] for adapter in (await answer.json())["adapters"]}
        except (aiohttp.ClientError, TimeoutError):
            return False
        if not await sync_to_async(wanted_digests)(url) <= held:
            return False
    return True


def wanted_digests(url: str) -> set[str]:
    wanted = Placement.objects.filter(replica__url=url).exclude(state=PlacementState.ORPHANED)
    return set(wanted.values_list("digest", flat=True))
