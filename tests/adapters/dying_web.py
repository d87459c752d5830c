"""A web process that dies at a given step of a request: kill -9, from inside.

    python -m tests.adapters.dying_web <database name>

Reads orders, a JSON object a line, and answers each with one. Each request runs in a fork, which
counts its write steps: before each INSERT, UPDATE and DELETE, before and after each COMMIT, before
each change in the store's folder and before each message to the worker. At step `die_at` the fork
kills itself.
"""

import base64
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import django

WRITES = ("INSERT", "UPDATE", "DELETE")
# Of sys.addaudithook: each with the path, or the paths, first.
CHANGES = frozenset({"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "shutil.rmtree"})
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Steps:
    def __init__(self, die_at: int, store: str) -> None:
        self.number, self._die_at, self._store = 0, die_at, store

    def step(self) -> None:
        self.number += 1
        if self.number == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        from celery import Task
        from django.db import connection

        connection.ensure_connection()
        connection.execute_wrappers.append(self._execute)
        commit = connection._commit

        def and_after() -> None:
            self.step()
            commit()
            self.step()

        connection._commit = and_after  # type: ignore[method-assign]
        apply_async: Callable[..., Any] = Task.apply_async

        def send(task: Any, *values: Any, **named: Any) -> Any:
            self.step()
            return apply_async(task, *values, **named)

        Task.apply_async = send
        sys.addaudithook(self._hear)

    def _execute(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(WRITES):
            self.step()
        return execute(sql, params, many, context)

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        is_write = event in CHANGES or (event == "open" and bool(given[2] & WRITE_FLAGS))
        if is_write and str(given[0]).startswith(self._store):
            self.step()


def perform(order: dict[str, Any]) -> dict[str, Any]:
    """In the fork. The answer's status."""
    from django.conf import settings

    Steps(order["die_at"], str(settings.ADAPTER_STORE_DIR)).watch()
    return {"status": send(order)}


def send(order: dict[str, Any]) -> int:
    """The request, by its key; the answer's status."""
    from django.core.files.uploadedfile import SimpleUploadedFile
    from django.test import Client

    client = Client(raise_request_exception=False, SERVER_NAME="localhost")
    headers = {"authorization": f"Bearer {order['key']}"}
    if "files" in order:
        sent = {
            name: SimpleUploadedFile(name, base64.b64decode(text))
            for name, text in order["files"].items()
        }
        return client.post(order["path"], sent, headers=headers).status_code
    call = getattr(client, order["method"].lower())
    answer = call(
        order["path"], order.get("json"), content_type="application/json", headers=headers
    )
    status: int = answer.status_code
    return status


def in_fork(order: dict[str, Any]) -> dict[str, Any]:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(write_end, "w") as out:
            out.write(json.dumps(perform(order)))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"killed_by": os.WTERMSIG(status)}
    found: dict[str, Any] = json.loads(text)
    return found


def main() -> None:
    from django.conf import settings

    # Before anything connects.
    settings.DATABASES["default"]["NAME"] = sys.argv[1]
    django.setup()
    warm_up()
    for line in sys.stdin:
        order = json.loads(line)
        settings.ADAPTER_STORE_DIR = order["store"]
        print(json.dumps(in_fork(order)), flush=True)


def warm_up() -> None:
    """Loads what a request does, once for all forks; keeps no connection that they would share."""
    import kombu.transport.redis  # noqa: F401
    from django.db import connections
    from django.test import Client

    for path in ("/readyz", "/api/session", "/api/tenants/acme/adapters/"):
        Client(raise_request_exception=False, SERVER_NAME="localhost").get(path)
    connections.close_all()


if __name__ == "__main__":
    main()
