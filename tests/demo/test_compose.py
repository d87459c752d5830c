"""docker-compose.yml, as Compose would read it: variables, commands and settings exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference.config import parse_arguments

ROOT_DIR = Path(__file__).resolve().parents[2]
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?::[?-]([^}]*))?\}")
OURS = {"migrate", "web", "worker", "healer", "beat", "inference"}


def example_variables() -> dict[str, str]:
    lines = (ROOT_DIR / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture
def compose() -> dict[str, Any]:
    known = example_variables()
    text = (ROOT_DIR / "docker-compose.yml").read_text()
    resolved: dict[str, Any] = yaml.safe_load(VARIABLE.sub(lambda found: known[found[1]], text))
    return resolved


def command_of(service: dict[str, Any]) -> list[str]:
    command = service["command"]
    return shlex.split(command) if isinstance(command, str) else command


def test_it_works(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == OURS | {"postgres", "redis"}


def test_every_variable_is_in_the_example_and_nothing_else_is() -> None:
    text = (ROOT_DIR / "docker-compose.yml").read_text()
    assert {name for name, _ in VARIABLE.findall(text)} == set(example_variables())


def test_secrets_have_no_default() -> None:
    text = (ROOT_DIR / "docker-compose.yml").read_text()
    defaults = {name: rest for name, rest in VARIABLE.findall(text) if rest}
    for name in ("SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD"):
        assert defaults[name] == "see .env.example"


def test_the_control_plane_gets_only_settings_that_exist(compose: dict[str, Any]) -> None:
    settings = (ROOT_DIR / "gateway" / "settings.py").read_text()
    # uvicorn's own: who may say where a request comes from.
    settings += '"FORWARDED_ALLOW_IPS"'
    for name in OURS - {"inference"}:
        for variable in compose["services"][name]["environment"]:
            assert f'"{variable}"' in settings, variable


def test_what_is_started_is_waited_for(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[needed], f"{name} waits for {needed}"
    assert all("healthcheck" in services[name] for name in ("web", "worker", "healer", "inference"))


def test_every_queue_has_a_worker_of_its_own(compose: dict[str, Any]) -> None:
    commands = [command_of(compose["services"][name]) for name in ("worker", "healer")]
    queues = [command[command.index("--queues") + 1] for command in commands]
    schedule = (ROOT_DIR / "gateway" / "schedule.py").read_text()
    assert queues == re.findall(r'Queue\("(\w+)"\)', schedule)


def test_every_named_volume_is_declared(compose: dict[str, Any]) -> None:
    used = {
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
    }
    named = {name for name in used if not name.startswith(("/", "."))}
    assert named == set(compose["volumes"])


def test_the_replica_takes_its_flags(compose: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    folders = {"/models/smollm2-135m-instruct": str(tmp_path), "/adapters": str(tmp_path)}
    command = command_of(compose["services"]["inference"])
    assert command[:3] == ["python", "-m", "inference"]
    config = parse_arguments([folders.get(word, word) for word in command[3:]])
    assert (config.port, config.engine.dtype) == (8100, "float32")


def test_the_image_holds_what_the_commands_need() -> None:
    ignored = (ROOT_DIR / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+)$", (ROOT_DIR / "Dockerfile").read_text(), re.M)
    for line in copied:
        for source in line.split()[:-1]:
            top = source.strip("/").split("/")[0]
            assert f"!{top}" in ignored, source
            assert (ROOT_DIR / top).exists(), source
