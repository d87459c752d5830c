"""`grafthouse` in processes of its own against the whole house, as a terminal and as CI use it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.house import ROOT_DIR, House, Member
from tests.e2e.test_live_swap import DEMO_ADAPTERS_DIR, other_version

pytestmark = [pytest.mark.demo, pytest.mark.slow]


class Shell:
    """A machine with the client, a home folder and nothing else of the house."""

    def __init__(self, home: Path, **variables: str) -> None:
        self.home = home
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.environ = kept | {"HOME": str(home), "PYTHONPATH": str(ROOT_DIR)} | variables

    def run(
        self, *words: str, status: int = 0, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "grafthouse", *words],
            cwd=self.home,
            env=self.environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == status, (words, done.stdout, done.stderr)
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)


@pytest.fixture(scope="module")
def shell(house: House, acme: Member, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(
        tmp_path_factory.mktemp("home"),
        GRAFTHOUSE_URL=house.url,
        GRAFTHOUSE_API_KEY=acme.api_key,
    )


def test_from_a_folder_to_an_answer_and_back(shell: Shell, acme: Member, tmp_path: Path) -> None:
    source = DEMO_ADAPTERS_DIR / acme.adapters[0]
    first = shell.json("upload", str(source), "--adapter", "cli-bot", "--activate")
    assert (first["number"], first["state"]) == (1, "active")
    shown = shell.run("upload", str(other_version(source, tmp_path / "cli-bot", 0.9))).stdout
    assert shown.startswith("cli-bot@2 is ready\n") and "14 tensors" not in shown
    assert "cli-bot@2 is active" in shell.run("activate", "cli-bot", "2").stdout
    by_number = {row["number"]: row for row in shell.json("versions", "cli-bot")}
    assert by_number[1]["digest"] == first["digest"] and by_number[1]["is_served"]
    assert shell.json("rollback", "cli-bot")["number"] == 1
    assert shell.json("rollback", "cli-bot")["number"] == 2
    listed = {row["name"]: row for row in shell.json("adapters", "list")}
    assert listed["cli-bot"]["active_version"]["number"] == 2
    names_lead_to_versions(shell)
    asked = shell.run("chat", "cli-bot", "-", "--max-tokens", "4", stdin="Hello?")
    assert asked.stdout.strip() and "cli-bot@2: " in asked.stderr
    assert "4 completion tokens" in asked.stderr
    sums = {row["adapter"]: row for row in shell.json("usage")["by_adapter"]}
    assert sums["cli-bot"]["num_requests"] == 1
    assert "cli-bot" in shell.run("usage").stdout


def names_lead_to_versions(shell: Shell) -> None:
    """With version 2 active: canary, alias and retirement of version 1, and back to 2."""
    assert shell.json("canary", "cli-bot", "1", "10")["percent"] == 10
    assert "cli-bot@1 is a canary for 10 %" in shell.run("canary", "cli-bot").stdout
    shell.run("retire", "cli-bot@1", status=5)
    assert shell.json("canary", "cli-bot", "--stop") == {"adapter": "cli-bot", "canary": None}
    shell.run("canary", "cli-bot", "--stop", status=4)
    assert shell.run("alias", "cli-prod", "cli-bot@1").stdout == "cli-prod is cli-bot@1\n"
    assert shell.json("alias", "cli-prod", "cli-bot")["version"] is None
    assert "cli-prod" in shell.run("aliases").stdout
    assert shell.json("unalias", "cli-prod")["adapter"] is None
    shell.json("canary", "cli-bot", "1", "50")
    assert "cli-bot@1 is active" in shell.run("canary", "cli-bot", "--promote").stdout
    assert shell.json("rollback", "cli-bot")["number"] == 2
    assert shell.json("retire", "cli-bot@1")["state"] == "retired"


def test_a_version_is_measured(shell: Shell, acme: Member) -> None:
    name = acme.adapters[0]
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    content = json.dumps({"messages": turns})
    acme.call("PUT", f"adapters/{name}/eval-set/", json={"content": content}).raise_for_status()
    number = acme.get(f"adapters/{name}/")["active_version"]["number"]
    shown = shell.run("evaluate", f"{name}@{number}").stdout.splitlines()
    assert shown[0].endswith("is completed") and shown[1].split()[:2] == ["WHO", "LOSS"]
    assert [line.split()[0] for line in shown[2:]] == ["base", "adapter"]


def test_what_is_rejected_is_said_and_has_a_status(
    shell: Shell, acme: Member, tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(DEMO_ADAPTERS_DIR / acme.adapters[0], folder)
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace('"r": ', '"r": 1'))
    done = shell.run("upload", str(folder), status=5)
    assert "broken@1 is rejected" in done.stdout and "rank_mismatch" in done.stdout


def test_a_key_is_kept_and_forgotten_and_never_shown(
    house: House, acme: Member, tmp_path: Path
) -> None:
    shell = Shell(tmp_path)
    assert "grafthouse login" in shell.run("whoami", status=3).stderr
    words = ("login", "--url", house.url, "--key-stdin")
    outputs = [shell.run(*words, stdin=acme.api_key + "\n"), shell.run("whoami")]
    secret = acme.api_key.rpartition("-")[2]
    assert all(secret not in done.stdout + done.stderr for done in outputs)
    assert shell.json("whoami")["slug"] == acme.slug
    shell.run("logout")
    shell.run("whoami", status=3)


def test_every_failure_is_one_line_with_its_status(shell: Shell, tmp_path: Path) -> None:
    nowhere = Shell(tmp_path, GRAFTHOUSE_API_KEY="gh-x", GRAFTHOUSE_URL="http://127.0.0.1:9")
    wrong = Shell(tmp_path, **shell.environ | {"GRAFTHOUSE_API_KEY": "gh-x"})
    # The demo's key may not read the audit log.
    for who, words, status in (
        (shell, ("versions", "nope"), 4),
        (shell, ("chat", "nope", "hi"), 4),
        (shell, ("logs",), 3),
        (shell, ("upload", "nope"), 2),
        (shell, ("evaluate", "nope"), 2),
        (shell, ("unalias", "nope"), 4),
        (wrong, ("adapters", "list"), 3),
        (nowhere, ("adapters", "list"), 6),
    ):
        done = who.run(*words, status=status)
        assert done.stderr.startswith("grafthouse: ") and done.stderr.count("\n") == 1, words
        assert done.stdout == ""


def test_the_audit_log_is_told_oldest_first(shell: Shell, house: House, acme: Member) -> None:
    body = {"name": "cli", "scopes": ["admin"]}
    made = acme.call("POST", "keys/", json=body)
    assert made.status_code == 201, made.text
    admin = Shell(shell.home, **shell.environ | {"GRAFTHOUSE_API_KEY": made.json()["secret"]})
    rows = [json.loads(line) for line in admin.run("logs", "-n", "5", "--json").stdout.splitlines()]
    assert len(rows) == 5
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert rows[-1]["action"] in admin.run("logs", "-n", "1").stdout
