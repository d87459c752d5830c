"""A real Celery worker in a process of its own, over a real broker and a database on disk."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services import start_valkey

ROOT_DIR = Path(__file__).resolve().parent.parent.parent


@contextmanager
def worker(environment: dict[str, str], log: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "celery", "-A", "gateway", "worker"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--pool", "threads", "--concurrency", "2", "--beat"],
            cwd=ROOT_DIR,
            env=environment,
            stdout=out,
            stderr=out,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.slow
def test_a_worker_makes_an_upload_ready(base: Path, adapter_files: Path, tmp_path: Path) -> None:
    store, redis_url = start_valkey()
    environment = os.environ | {
        "VAR_DIR": str(tmp_path),
        "DATABASE_URL": f"sqlite:///{tmp_path / 'db.sqlite3'}",
        "REDIS_URL": redis_url,
        "MODEL": str(base),
        "ADAPTER_STORE_DIR": str(tmp_path / "store"),
        "REPLICA_URLS": "http://127.0.0.1:9",
        "DJANGO_SETTINGS_MODULE": "gateway.settings",
    }
    log = tmp_path / "worker.log"
    run = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(run, cwd=ROOT_DIR, env=environment, check=True, timeout=120)
    try:
        with worker(environment, log):
            done = subprocess.run(
                [sys.executable, "-m", "tests.adapters.worker_client", str(adapter_files), "90"],
                cwd=ROOT_DIR,
                env=environment,
                capture_output=True,
                text=True,
                timeout=150,
            )
    finally:
        store.kill()
    assert done.returncode == 0, done.stderr
    state, digest = done.stdout.split()
    assert state == "ready", log.read_text()
    assert (tmp_path / "store" / digest[:2] / digest / "adapter_model.safetensors").is_file()
    # Beat's rounds met a replica that refuses the connection and went on.
    assert "Traceback" not in log.read_text()
