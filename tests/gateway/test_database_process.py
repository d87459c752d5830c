"""The process that asks the database for a web process: what it answers, and what of it may die."""

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from django.conf import settings
from django.db import OperationalError

from gateway.database_process import DatabaseProcess
from tenants.errors import ApiError
from tests.gateway import database_calls as calls
from tests.gateway.conftest import Stack
from tests.gateway.live import BASE_MODEL, wait_for


@pytest.fixture
async def database() -> AsyncIterator[DatabaseProcess]:
    found = DatabaseProcess()
    yield found
    await found.stop()


async def test_it_works(database: DatabaseProcess) -> None:
    pids = await asyncio.gather(*(database.read(calls.process_id) for _ in range(20)))
    assert len(set(pids)) == 1
    assert pids[0] != os.getpid()


async def test_writes_are_done_in_order_and_reads_beside_them(database: DatabaseProcess) -> None:
    await database.read(calls.done)
    slow = asyncio.create_task(database.write(calls.note, 1, 0.5))
    await asyncio.sleep(0)
    quick = asyncio.create_task(database.write(calls.note, 2))
    await asyncio.sleep(0)
    assert await database.read(calls.done) == []
    await asyncio.gather(slow, quick)
    assert await database.read(calls.done) == [1, 2]


async def test_what_is_raised_there_is_raised_here_whole(database: DatabaseProcess) -> None:
    with pytest.raises(ApiError) as refused:
        await database.read(calls.refuse)
    error = refused.value
    assert (error.code, error.status, error.message) == ("spent", 429, "No more.")
    assert (error.type, error.param, error.headers) == (
        *("insufficient_quota", "n"),
        {"retry-after": "1"},
    )
    with pytest.raises(OperationalError, match="locked") as failed:
        await database.write(calls.fail)
    # Where it was raised is not lost on the way.
    assert "in fail" in failed.value.__notes__[0]


@pytest.mark.parametrize("call", [calls.fail_oddly, calls.fail_with_a_lock])
async def test_an_error_that_cannot_travel_is_told_of(
    database: DatabaseProcess, call: Callable[[], None]
) -> None:
    for ask in (database.read, database.write):
        with pytest.raises(RuntimeError, match=r"nowhere|lock"):
            await ask(call)


async def test_one_that_cannot_start_is_a_database_that_is_away(
    database: DatabaseProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(OperationalError, match="does not start"):
            await database.read(calls.done)
    assert await database.read(calls.done) == []


async def test_a_killed_one_is_replaced_and_asked_again(database: DatabaseProcess) -> None:
    pid = await database.read(calls.process_id)
    under_way = asyncio.create_task(database.write(calls.note, 7, 0.3))
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    assert await under_way == 7
    assert await database.read(calls.done) == [7]
    assert await database.read(calls.process_id) != pid


async def test_what_kills_each_is_given_up(database: DatabaseProcess, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(OperationalError, match="lost 2 times"):
        await database.write(calls.die_with, str(pids))
    assert len(pids.read_text().split()) == 2
    assert await database.read(calls.done) == []


async def test_a_caller_that_left_leaves_nobody_elses_answer(database: DatabaseProcess) -> None:
    await database.read(calls.done)
    left = asyncio.create_task(database.write(calls.note, 1, 0.2))
    await asyncio.sleep(0.05)
    left.cancel()
    assert await database.write(calls.note, 2) == 2
    assert await database.read(calls.done) == [1, 2]


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_the_whole_group_leaves_it_to_its_web_process(
    database: DatabaseProcess, kind: signal.Signals
) -> None:
    pid = await database.read(calls.process_id)
    os.kill(pid, kind)
    assert await database.read(calls.process_id) == pid


async def test_stop_waits_for_what_was_asked(database: DatabaseProcess) -> None:
    pid = await database.read(calls.process_id)
    late = asyncio.create_task(database.write(calls.note, 1, 0.3))
    await asyncio.sleep(0.05)
    await database.stop()
    assert await late == 1
    assert not is_running(pid)


def test_it_ends_with_its_web_process_after_what_that_asked(tmp_path: Path) -> None:
    """Also one that was killed: what it sent is written."""
    code = (
        "import asyncio, os; from pathlib import Path\n"
        "from gateway.database_process import DatabaseProcess\n"
        "async def main():\n"
        "    database = DatabaseProcess()\n"
        "    print(await database.read(os.getpid), flush=True)\n"
        "    for number in range(3):\n"
        f"        path = Path({str(tmp_path)!r}, str(number))\n"
        "        asyncio.create_task(database.write(Path.touch, path))\n"
        "    await asyncio.sleep(0)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    begun = "import gateway.asgi\n" + code
    done = subprocess.run(
        [sys.executable, "-c", begun], cwd=settings.ROOT_DIR, stdout=subprocess.PIPE, timeout=60
    )
    pid = int(done.stdout)
    wait_for("its end", lambda: not is_running(pid), timeout_s=20)
    assert len(list(tmp_path.iterdir())) == 3


def test_requests_outlive_it(stack: Stack) -> None:
    """Killed again and again while clients ask: nobody is told, and the ledger has each once."""
    customer = stack.make_customer()
    client = customer.client(max_retries=0)
    with ThreadPoolExecutor(8) as clients:
        until_s = time.monotonic() + 12
        askers = [clients.submit(ask_until, client, until_s) for _ in range(8)]
        for _ in range(3):
            [pid] = database_pids(stack.web.process.pid)
            time.sleep(1)
            os.kill(pid, signal.SIGKILL)
            wait_for("the next", partial(others, stack.web.process.pid, pid))
        num_asked = sum(asker.result() for asker in askers)
    rows = customer.usage(num_asked)
    assert {row.status for row in rows} == {"finished"}
    assert len({row.request_id for row in rows}) == num_asked


def ask_until(client: openai.OpenAI, until_s: float) -> int:
    """How often it was answered; any other answer raises."""
    given: Any = [{"role": "user", "content": "Where is my order?"}]
    num_asked = 0
    while time.monotonic() < until_s:
        client.chat.completions.create(model=BASE_MODEL, messages=given)
        num_asked += 1
    return num_asked


def others(web_pid: int, pid: int) -> set[int]:
    return set(database_pids(web_pid)) - {pid}


def database_pids(web_pid: int) -> list[int]:
    children = Path(f"/proc/{web_pid}/task").glob("*/children")
    return [int(pid) for one in children for pid in one.read_text().split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_no_stream_waits_for_the_table_of_files(stack: Stack) -> None:
    """Linux doubles it when it is full, and where there are threads everybody waits meanwhile."""
    stack.make_customer().client().models.list()
    status = Path(f"/proc/{stack.web.process.pid}/status").read_text()
    [size] = re.findall(r"^FDSize:\s+(\d+)$", status, re.MULTILINE)
    assert int(size) >= min(settings.MAX_CONNECTIONS + settings.MAX_STREAMS, num_files_allowed())


def num_files_allowed() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
