"""The demo as a user meets it: a fresh start seeds it, the next one finds it as it was."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from demo.base_model import ensure
from tests.e2e.house import MODEL_DIR, ROOT_DIR, House, is_up, process_ids, wait_for
from tests.services import free_port

pytestmark = [pytest.mark.demo, pytest.mark.slow]


def start(var_dir: Path) -> subprocess.Popen[bytes]:
    given = ("REDIS_URL", "DATABASE_URL", "SECRET_KEY")
    inherited = {key: value for key, value in os.environ.items() if key not in given}
    house = {"VAR_DIR": str(var_dir), "PORT": str(free_port()), "MODEL": str(MODEL_DIR)}
    command = [sys.executable, "manage.py", "serve"]
    with (var_dir / "serve.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=ROOT_DIR, env=inherited | house, stdout=log, stderr=log
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0


def versions(house: House) -> list[dict[str, Any]]:
    member = house.sign_in(0)
    with member.session:
        return [
            version
            for name in member.adapters
            for version in member.get(f"adapters/{name}/versions/")["results"]
        ]


def test_start_stop_start(tmp_path: Path) -> None:
    ensure(MODEL_DIR)
    process = start(tmp_path)
    try:
        demo = wait_for("first start", lambda: is_up(process, tmp_path), 240)
        first = House(demo["url"], tmp_path, demo, process)
        assert (tmp_path / "demo.json").stat().st_mode & 0o777 == 0o600
        assert all(tenant["api_key"] in first.log for tenant in demo["tenants"])
        assert [version["state"] for version in versions(first)] == ["active", "active"]
        before = versions(first)
    finally:
        stop(process)
    assert not process_ids(tmp_path, "")

    started = time.monotonic()
    process = start(tmp_path)
    try:
        again = wait_for("second start", lambda: is_up(process, tmp_path), 240)
        second = House(again["url"], tmp_path, again, process)
        print(f"second start: {time.monotonic() - started:.1f} s")
        assert again["tenants"] == demo["tenants"]
        assert again["operator"] == demo["operator"]
        assert demo["tenants"][0]["api_key"] not in second.log
        assert versions(second) == before
        # Before serve says it is up, the replica holds again what it held.
        answer = requests.post(
            f"{again['url']}/v1/chat/completions",
            headers={"authorization": f"Bearer {again['tenants'][0]['api_key']}"},
            json={
                "model": "ticket-triage",
                "temperature": 0,
                "messages": [{"role": "user", "content": "Where is my parcel?"}],
            },
            timeout=60,
        )
        assert answer.json()["choices"][0]["message"]["content"] == "shipping", answer.text
    finally:
        process.kill()
        process.wait()
    # kill -9 of the supervisor leaves nothing behind.
    wait_for("no process left", lambda: not process_ids(tmp_path, ""), 10)
