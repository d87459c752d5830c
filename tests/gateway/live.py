"""A real web process over a real database and a real counter store, for the tests of this room.

The process has a database of its own, since another process cannot see a test's transaction; the
test talks to the same one through Django's default connection for as long as it runs.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import dj_database_url
import openai
import psycopg
import requests
from django.conf import settings
from django.db import connections
from django.test import override_settings

from gateway.embedded import WEB_COMMAND
from tenants.store import store
from tests.services import free_port

ROOT_DIR = Path(__file__).resolve().parents[2]
BASE_MODEL = "tiny-base"
REPLICA_TOKEN = "what replicas announce themselves with"
T = TypeVar("T")


def wait_for(what: str, probe: Callable[[], T | None], timeout_s: float = 20.0) -> T:
    deadline = time.monotonic() + timeout_s
    answer = None
    while time.monotonic() < deadline:
        if answer := probe():
            return answer
        time.sleep(0.02)
    raise TimeoutError(f"{what}: not within {timeout_s} s (last answer {answer!r})")


def make_database(folder: Path) -> str:
    """An empty, migrated database of the kind that this run tests on: its URL."""
    given = os.environ.get("DATABASE_URL", "")
    if given.startswith("postgres"):
        name = f"live_{secrets.token_hex(4)}"
        with psycopg.connect(given, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        # The socket's folder is in the query, with slashes of its own.
        server, mark, query = given.partition("?")
        url = f"{server.rsplit('/', 1)[0]}/{name}{mark}{query}"
    else:
        url = f"sqlite:///{folder / 'live.sqlite3'}"
    environment = os.environ | {"DATABASE_URL": url, "VAR_DIR": str(folder)}
    command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(command, cwd=ROOT_DIR, env=environment, check=True)
    return url


@contextlib.contextmanager
def default_database(url: str) -> Iterator[None]:
    """Django's default connection, in this thread and in new ones, goes to url meanwhile."""
    before, kept = connections["default"], dict(connections.settings["default"])
    # Options are of one kind of database; the settings may have been read for the other.
    parsed: dict[str, Any] = {"OPTIONS": {}, **dj_database_url.parse(url)}
    if url.startswith("sqlite"):
        parsed["OPTIONS"] = kept["OPTIONS"]
    connections.settings["default"].update(parsed)
    connections["default"] = connections.create_connection("default")
    try:
        yield
    finally:
        connections["default"].close()
        connections.settings["default"].clear()
        connections.settings["default"].update(kept)
        connections["default"] = before


@contextlib.contextmanager
def default_store() -> Iterator[None]:
    """This process publishes to the run's own store, even if its settings were read too early."""
    url = os.environ["REDIS_URL"]
    layers = {"default": settings.CHANNEL_LAYERS["default"] | {"CONFIG": {"hosts": [url]}}}
    store.cache_clear()
    with override_settings(REDIS_URL=url, CHANNEL_LAYERS=layers):
        yield
    store.cache_clear()


def metric(web: "Web", name: str) -> float:
    """The series, by its name and labels as the exposition writes them."""
    text = requests.get(f"{web.url}/metrics", timeout=30).text
    found = [line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(found[0])


@dataclass
class Web:
    """One web process; log: its standard error."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    clients: list[openai.OpenAI] = field(default_factory=list)

    def client(self, api_key: str, **options: Any) -> openai.OpenAI:
        """The official client; close_clients() closes it."""
        base_url = f"{self.url}/v1"
        client = openai.OpenAI(base_url=base_url, api_key=api_key, **({"max_retries": 0} | options))
        self.clients.append(client)
        return client

    def close_clients(self) -> None:
        while self.clients:
            self.clients.pop().close()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


def start_web(folder: Path, database_url: str, replica_urls: list[str], **environ: str) -> Web:
    """Started and ready; environ overrides what gateway.settings reads."""
    port = free_port()
    log = folder / f"web-{port}.log"
    environment = os.environ | {
        "VAR_DIR": str(folder),
        "DATABASE_URL": database_url,
        "SECRET_KEY": settings.SECRET_KEY,
        "REDIS_URL": os.environ["REDIS_URL"],
        "REPLICA_URLS": ",".join(replica_urls),
        "REPLICA_TOKEN": REPLICA_TOKEN,
        "MODEL_NAME": BASE_MODEL,
        "CORS_ORIGINS": "https://app.example.org",
        "PORT": str(port),
    }
    options = ("--lifespan", "on", "--port", str(port), "--timeout-graceful-shutdown", "5")
    with open(log, "wb") as file:
        process = subprocess.Popen(
            (*WEB_COMMAND, *options),
            cwd=ROOT_DIR,
            env=environment | environ,
            stderr=file,
            stdout=file,
        )
    web = Web(f"http://127.0.0.1:{port}", process, log)

    def is_up() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return bool(urllib.request.urlopen(f"{web.url}/healthz", timeout=5).status == 200)
        return False

    # A start is nobody's speed: a busy machine takes its time.
    wait_for("the web process", is_up, timeout_s=90)
    return web
