"""Our house without replica and worker: `python -m gateway.bench.ours`, until stdin ends.

Started by the code that `manage.py serve` starts it with: its own Valkey, its database in VAR_DIR,
one web process. Prints a line of JSON when it is ready: port, key, and the web process's pid.
"""

import asyncio
import json
import socket
import sys
from functools import partial
from pathlib import Path

import aiohttp
import django
from django.conf import settings

django.setup()

from django.core.management import call_command  # noqa: E402

from gateway import embedded  # noqa: E402
from gateway.embedded import Addresses  # noqa: E402
from gateway.house import REQUEST_TIMEOUT, answers_ping, is_ok  # noqa: E402
from gateway.supervisor import Child, Supervisor  # noqa: E402

POLL_INTERVAL_S = 0.05
START_TIMEOUT_S = 120


async def live() -> None:
    addresses = embedded.choose_addresses(settings.VAR_DIR)
    say = partial(print, file=sys.stderr, flush=True)
    supervisor = Supervisor(settings.VAR_DIR / "log", settings.ROOT_DIR, say)
    try:
        with embedded.listen(settings.HOST, settings.PORT) as listener:
            async with asyncio.timeout(START_TIMEOUT_S):
                ready = await start(supervisor, addresses, listener)
            print(json.dumps(ready), flush=True)
            await asyncio.to_thread(sys.stdin.read)
    finally:
        await supervisor.stop()


async def start(
    supervisor: Supervisor, addresses: Addresses, listener: socket.socket
) -> dict[str, str | int]:
    supervisor.start(embedded.store_child(addresses, settings.VAR_DIR))
    while not await answers_ping(addresses.redis_url):
        await asyncio.sleep(POLL_INTERVAL_S)
    command = (sys.executable, "-m", "gateway.bench.seed")
    end = await supervisor.run(Child("seed", command, addresses.environment()))
    printed = supervisor.log_path("seed").read_text().splitlines()
    if end != "status 0":
        raise SystemExit(f"seeding failed ({end}): {printed[-1:]}")
    [web] = embedded.web_children(addresses, listener)
    supervisor.start(web)
    async with aiohttp.ClientSession(timeout=REQUEST_TIMEOUT) as http:
        while not await is_ok(http, f"{embedded.own_url()}/readyz"):
            await asyncio.sleep(POLL_INTERVAL_S)
    return {"port": settings.PORT, "key": printed[-1], "pid": web_pid()}


def web_pid() -> int:
    for pid in Path("/proc/self/task").glob("*/children"):
        for child in pid.read_text().split():
            if b"uvicorn" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise SystemExit("the web process is not there")


if __name__ == "__main__":
    call_command("migrate", interactive=False, verbosity=0)
    asyncio.run(live())
