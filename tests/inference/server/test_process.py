"""The process: its command line, its start, its end."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from inference.config import EngineConfig, parse_arguments
from tests.inference.server.conftest import (
    ROOT_DIR,
    SMALL,
    Server,
    exit_status,
    start_replica,
)
from tests.services import free_port, wait_for_port
from tests.tiny import make_adapter, make_base

HI: list[Any] = [{"role": "user", "content": "hi there"}]


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "inference", *flags]
    return subprocess.run(command, cwd=ROOT_DIR, capture_output=True, text=True, timeout=60)


def refusal(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """The one line on stderr; the exit status must be 2."""
    with pytest.raises(SystemExit) as stopped:
        parse_arguments(flags)
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n") and err.count("\n") == 1
    return err


def test_it_works(base: Path, adapters: dict[str, Path]) -> None:
    paths = (f"a={adapters['red']}", f"b={adapters['blue']}")
    flags = "--max-loras-per-batch 4 --max-lora-rank 32 --tp 1 --port 1234 --kv-cache-bytes 512M"
    flags += " --adapter-cache-dir compiled --adapter-cache-bytes 2G"
    model = ("serve", "--no-prefix-cache", "--model-path", str(base))
    config = parse_arguments([*model, *flags.split(), "--lora-paths", *paths])
    repeated = [flag for path in paths for flag in ("--lora-paths", path)]
    assert parse_arguments([*model, *flags.split(), *repeated]) == config
    assert config.base_name == "tiny"
    assert [name for name, _ in config.lora_paths] == ["a", "b"]
    assert (config.port, config.host) == (1234, "127.0.0.1")
    assert config.engine.max_loras_per_batch == 4
    assert config.engine.max_lora_rank == 32
    assert config.engine.kv_cache_bytes == 512 << 20
    assert config.engine.prefix_cache is False
    assert (config.engine.adapter_cache_dir, config.engine.adapter_cache_bytes) == (
        "compiled",
        2 << 30,
    )


def test_the_defaults_are_the_engines(base: Path) -> None:
    config = parse_arguments(["serve", "--model-path", str(base)])
    assert config.engine == EngineConfig(str(base))


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--tp", "4"], "tensor parallelism"),
        (["--tp", "0"], "--tp"),
        (["--port", "99999"], "--port"),
        (["--port", "http"], "--port"),
        (["--lora-paths", "red"], "NAME=PATH"),
        (["--lora-paths", "red=/nowhere"], "/nowhere"),
        (["--max-lora-rank", "-3"], "--max-lora-rank"),
        (["--max-loras-per-batch", "many"], "--max-loras-per-batch"),
        (["--dtype", "int4"], "--dtype"),
        (["--kv-cache-bytes", "lots"], "--kv-cache-bytes"),
        (["--host-adapter-bytes", "0"], "--host-adapter-bytes"),
        (["--gpu-memory-fraction", "2"], "--gpu-memory-fraction"),
        (["--grace-s", "nan"], "--grace-s"),
        (["--adapter-dir", "setup.cfg"], ""),
        (["--colour", "blue"], "--colour"),
        (["--max-lora", "3"], "--max-lora"),
    ],
)
def test_a_wrong_flag_is_one_line(
    capsys: pytest.CaptureFixture[str], base: Path, flags: list[str], word: str
) -> None:
    if flags[0] == "--adapter-dir":
        flags = ["--adapter-dir", str(base / "config.json")]
    assert word in refusal(capsys, "serve", "--model-path", str(base), *flags)


def test_a_missing_model_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no config.json" in refusal(capsys, "serve", "--model-path", str(tmp_path))
    assert "--model-path" in refusal(capsys, "serve")
    assert "COMMAND" in refusal(capsys)


def test_a_name_can_be_taken_once(
    capsys: pytest.CaptureFixture[str], base: Path, adapters: dict[str, Path]
) -> None:
    red = adapters["red"]
    for names in ([f"tiny={red}"], [f"a={red}", f"a={adapters['blue']}"]):
        flags = ["serve", "--model-path", str(base), "--lora-paths", *names]
        assert "taken" in refusal(capsys, *flags)


def test_help_explains_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_arguments(["serve", "--help"])
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for flag in ("--lora-paths", "--max-loras-per-batch", "--max-lora-rank", "--tp", "--port"):
        assert flag in text
    assert text.count("default") >= 20


def test_a_wrong_start_is_one_line_and_status_2(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    """As a user sees it: no stack trace, nothing on stdout."""
    no_tokenizer = make_base(tmp_path / "bare")
    (no_tokenizer / "tokenizer.json").unlink()
    wide = make_adapter(tmp_path / "wide", base, r=32)
    port = socket.create_server(("127.0.0.1", 0))
    with port:
        taken = str(port.getsockname()[1])
        model = ["--model-path", str(base)]
        cases = {
            f"cannot listen on 127.0.0.1:{taken}": [*model, "--port", taken],
            "tokenizer.json": ["--model-path", str(no_tokenizer)],
            "rank": [*model, "--max-lora-rank", "8", "--lora-paths", f"wide={wide}"],
        }
        for word, flags in cases.items():
            done = run("serve", "--port", "0", *SMALL, *flags)
            assert done.returncode == 2, done.stderr
            assert done.stdout == ""
            last = done.stderr.splitlines()[-1]
            assert last.startswith("python -m inference serve: error: ")
            assert word in last
            assert "Traceback" not in done.stderr


def test_while_it_loads_it_says_so_and_can_be_stopped(base: Path) -> None:
    """Alive and not ready: torch alone takes seconds to import."""
    port = str(free_port())
    command = [sys.executable, "-m", "inference", "serve", "--model-path", str(base)]
    with subprocess.Popen(
        [*command, "--port", port, *SMALL], cwd=ROOT_DIR, stdout=subprocess.PIPE
    ) as process:
        wait_for_port(int(port), timeout_s=50)
        server = Server(f"http://127.0.0.1:{port}")
        assert server.call("/health").status == 200
        assert server.call("/ready").error["code"] == "overloaded"
        refused = server.call("/v1/completions", {"model": "tiny", "prompt": "x"})
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        process.terminate()
        assert process.wait(30) == 0
        assert process.stdout is not None and process.stdout.read() == b""


def engine_pid(replica: Server) -> int:
    """Of the process that the front started, by whichever of its threads."""
    assert replica.process is not None
    threads = Path(f"/proc/{replica.process.pid}/task").glob("*/children")
    (child,) = " ".join(path.read_text() for path in threads).split()
    return int(child)


def is_running(process: Path) -> bool:
    """process: below /proc. One that nobody has buried yet does not run."""
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_dead_engine_ends_the_process(base: Path) -> None:
    """Streams learn it, and a supervisor starts a new one: what only looks alive serves nobody."""
    replica = start_replica("--model-path", str(base))
    with replica.openai() as client:
        stream = client.chat.completions.create(
            model="tiny", messages=HI, n=16, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        os.kill(engine_pid(replica), signal.SIGKILL)
        with pytest.raises(openai.APIError, match="engine stopped"):
            for _ in stream:
                pass
    assert exit_status(replica) == 1


def test_the_engine_ends_with_its_front(base: Path) -> None:
    replica = start_replica("--model-path", str(base))
    assert replica.process is not None
    engine = Path(f"/proc/{engine_pid(replica)}")
    replica.process.kill()
    assert exit_status(replica) == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while is_running(engine):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_sigterm_lets_streams_finish(base: Path) -> None:
    flags = ("--model-path", str(base), "--served-model-name", "oak", "--grace-s", "60")
    replica = start_replica(*flags)
    assert replica.process is not None
    with replica.openai() as client:
        stream = client.chat.completions.create(
            model="oak", messages=HI, max_tokens=300, stream=True, extra_body={"ignore_eos": True}
        )
        chunks = [next(iter(stream))]
        replica.process.send_signal(signal.SIGTERM)
        chunks += list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert exit_status(replica) == 0


def test_sigterm_ends_what_does_not_finish_in_time(base: Path) -> None:
    """The client learns it by an error in its stream; the process leaves with 0."""
    replica = start_replica("--model-path", str(base), "--grace-s", "0.2")
    assert replica.process is not None
    with replica.openai() as client:
        stream = client.chat.completions.create(
            model="tiny", messages=HI, n=16, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        sent_at = time.monotonic()
        replica.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="shutting down"):
            for _ in stream:
                pass
    assert exit_status(replica) == 0
    assert time.monotonic() - sent_at < 30
