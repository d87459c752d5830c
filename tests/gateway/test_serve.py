"""`manage.py serve` refuses in one line what cannot work, before it starts anything."""

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.embedded import CannotServe, listen, locked, own_port

ROOT_DIR = Path(__file__).resolve().parents[2]


def serve(var_dir: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "REDIS_URL"}
    return subprocess.run(
        [sys.executable, "manage.py", "serve"],
        cwd=ROOT_DIR,
        env={**inherited, "VAR_DIR": str(var_dir), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(serve(tmp_path, PORT=str(port)))
    assert f"127.0.0.1:{port}" in line
    assert "PORT=" in line


def test_a_second_start_in_the_same_folder(tmp_path: Path) -> None:
    with (tmp_path / "serve.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        line = refusal(serve(tmp_path, PORT="0"))
    assert f"another `serve` already runs in {tmp_path}" in line
    assert "VAR_DIR=" in line


def test_a_model_that_is_none(tmp_path: Path) -> None:
    line = refusal(serve(tmp_path, PORT="0", MODEL=str(tmp_path / "nothing")))
    assert (
        line == f"error: MODEL={tmp_path}/nothing is not a model directory: it holds no config.json"
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PORT", "abc", "expected a whole number of 0 or more, got 'abc'"),
        ("NUM_WEB_WORKERS", "0", "expected a whole number of 1 or more, got '0'"),
        ("DEBUG", "maybe", "expected true or false, got 'maybe'"),
        ("ACCESS_LOG", "xml", "expected json or off, got 'xml'"),
        (
            "DATABASE_URL",
            "mysql://root:secret@db/x",
            "expected postgresql:// or sqlite://, got 'my",
        ),
        ("DATABASE_URL", "", "expected postgresql:// or sqlite://, got ''"),
    ],
)
def test_a_setting_that_cannot_be(tmp_path: Path, name: str, value: str, expected: str) -> None:
    line = refusal(serve(tmp_path, **{"PORT": "0"} | {name: value}))
    assert line.startswith(f"error: {name}: {expected}")
    assert "secret" not in line


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    nobody = "postgresql://nobody@127.0.0.1:1/nothing"
    line = refusal(serve(tmp_path, PORT="0", MODEL=str(tmp_path), DATABASE_URL=nobody))
    assert line.startswith("error: DATABASE_URL: the database cannot be used: connection failed")


def test_the_lock_goes_with_its_holder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(CannotServe), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_port_that_cannot_be() -> None:
    with pytest.raises(CannotServe, match=r"127\.0\.0\.1:99999"):
        listen("127.0.0.1", 99999)


def test_own_ports_stay_the_same_while_they_are_free(tmp_path: Path) -> None:
    port = own_port(tmp_path, "replica")
    assert own_port(tmp_path, "store") != port
    assert own_port(tmp_path, "replica") == port
    with socket.create_server(("127.0.0.1", port)):
        assert own_port(tmp_path, "replica") != port
