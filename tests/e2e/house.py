"""The whole house as a user starts it: `manage.py serve` in its own folder, on its own port."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import openai
import requests

from tests.services import free_port

ROOT_DIR = Path(__file__).resolve().parents[2]
MODEL_DIR = ROOT_DIR / "var" / "models" / "smollm2-135m-instruct"
START_TIMEOUT_S = 180
T = TypeVar("T")


def wait_for(what: str, probe: Callable[[], T | None], timeout_s: float = 60.0) -> T:
    """Poll until probe answers something true; its last answer is in the failure."""
    deadline = time.monotonic() + timeout_s
    answer = None
    while time.monotonic() < deadline:
        with contextlib.suppress(requests.ConnectionError, openai.APIConnectionError):
            if answer := probe():
                return answer
        time.sleep(0.1)
    raise TimeoutError(f"{what}: not within {timeout_s} s (last answer {answer!r})")


@dataclass(frozen=True)
class Member:
    """One signed-in member of a tenant at the admin API, and the tenant's key at /v1."""

    url: str
    slug: str
    api_key: str
    adapters: tuple[str, ...]
    session: requests.Session

    def call(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        """Ask /api/tenants/{own slug}/{path}, with the CSRF token as a browser would."""
        headers = {"X-CSRFToken": self.session.cookies["csrftoken"], "Referer": self.url}
        where = f"{self.url}/api/tenants/{self.slug}/{path}"
        return self.session.request(method, where, headers=headers, timeout=60, **kwargs)

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        answer.raise_for_status()
        return answer.json()

    def client(self, **kwargs: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.api_key, **kwargs)

    def upload(self, name: str, folder: Path) -> dict[str, Any]:
        """Create the adapter if it is new, upload one version, wait for its verdict."""
        if self.call("GET", f"adapters/{name}/").status_code == 404:
            self.call("POST", "adapters/", json={"name": name}).raise_for_status()
        with (
            open(folder / "adapter_config.json", "rb") as config,
            open(folder / "adapter_model.safetensors", "rb") as weights,
        ):
            files = {"config": config, "weights": weights}
            answer = self.call("POST", f"adapters/{name}/versions/", files=files)
        assert answer.status_code == 201, answer.text
        number = answer.json()["number"]
        return self.wait_for_version(name, number, {"ready", "rejected", "failed"})

    def activate(self, name: str, number: int) -> dict[str, Any]:
        answer = self.call("POST", f"adapters/{name}/versions/{number}/activate/")
        assert answer.status_code == 202, answer.text
        version = self.wait_for_version(name, number, {"active", "failed"})
        assert version["state"] == "active", version
        return version

    def wait_for_version(self, name: str, number: int, states: set[str]) -> dict[str, Any]:
        def probe() -> dict[str, Any] | None:
            version: dict[str, Any] = self.get(f"adapters/{name}/versions/{number}/")
            return version if version["state"] in states else None

        return wait_for(f"{name}@{number} in {states}", probe)


@dataclass(frozen=True)
class House:
    url: str
    var_dir: Path
    demo: dict[str, Any]
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        return (self.var_dir / "serve.log").read_text()

    def sign_in(self, index: int) -> Member:
        tenant = self.demo["tenants"][index]
        session = requests.Session()
        session.get(f"{self.url}/api/session", timeout=30).raise_for_status()
        answer = session.post(
            f"{self.url}/api/session",
            json={"login": tenant["login"], "password": tenant["password"]},
            headers={"X-CSRFToken": session.cookies["csrftoken"], "Referer": self.url},
            timeout=30,
        )
        assert answer.status_code == 200, answer.text
        slug, key = tenant["slug"], tenant["api_key"]
        return Member(self.url, slug, key, tuple(tenant["adapters"]), session)


def process_ids(var_dir: Path, words: str) -> list[int]:
    """Processes of the house in var_dir whose command line holds the words."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            variables = (entry / "environ").read_bytes().decode(errors="replace")
            if words in command and f"VAR_DIR={var_dir}\0" in variables:
                found.append(int(entry.name))
    return found


def store_process_id(var_dir: Path) -> int:
    """Valkey writes its title over its environment: known by its port instead."""
    port = json.loads((var_dir / "ports.json").read_text())["store"]
    titles = {entry: entry / "cmdline" for entry in Path("/proc").glob("[0-9]*")}
    for entry, title in titles.items():
        with contextlib.suppress(OSError):
            if f"127.0.0.1:{port}" in title.read_text() and "valkey" in title.read_text():
                return int(entry.name)
    raise LookupError(f"no store listens on port {port}")


def start(var_dir: Path, **settings: str) -> subprocess.Popen[bytes]:
    """settings: of this house, beside its folder and port."""
    names = ("REDIS_URL", "DATABASE_URL", "SECRET_KEY", "MODEL")
    inherited = {key: value for key, value in os.environ.items() if key not in names}
    port = str(free_port())
    with open(var_dir / "serve.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "manage.py", "serve"],
            cwd=ROOT_DIR,
            env={**inherited, "VAR_DIR": str(var_dir), "PORT": port, **settings},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def is_up(process: subprocess.Popen[bytes], var_dir: Path) -> dict[str, Any] | None:
    assert process.poll() is None, (var_dir / "serve.log").read_text()
    path = var_dir / "demo.json"
    if not path.exists() or "Grafthouse runs at" not in (var_dir / "serve.log").read_text():
        return None
    demo: dict[str, Any] = json.loads(path.read_text())
    return demo


def run_house(var_dir: Path, **settings: str) -> Iterator[House]:
    # The demo's model where a fresh house would put it, without fetching it again.
    (var_dir / "models").symlink_to(MODEL_DIR.parent)
    process = start(var_dir, **settings)
    try:
        demo = wait_for("the house", lambda: is_up(process, var_dir), START_TIMEOUT_S)
        yield House(demo["url"], var_dir, demo, process)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
