"""One run: fire, quiet, then what clients, replica, rows, bytes and audit say of each other."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import requests

from tests.e2e.chaos.askers import Answer, Asker
from tests.e2e.chaos.clients import SHARED, Client
from tests.e2e.chaos.files import Files
from tests.e2e.chaos.killer import Killer
from tests.e2e.chaos.watch import SILENCE_S, ReplicaWatch, RowWatch
from tests.e2e.house import ROOT_DIR, House, wait_for

NUM_CLIENTS, NUM_ASKERS = 4, 2
BASE_NAME = "tiny-base"
MAX_WORKING_S = 60.0
# A request may be answered by what was active until then: the gateway's caches, and a slow machine.
LAG_S = 2.0
# A report, or the load's own answer, is in the round that moves the pointer; we look ten times a
# second.
REPORT_S = 15.0


class Runs(Protocol):
    def run(self, is_over: threading.Event) -> None: ...


@dataclass
class Chaos:
    """faults: in words, none of a house that holds."""

    house: House
    pool: Sequence[Files]
    seed: int
    faults: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tenant, var_dir = self.house.demo["tenants"][0], self.house.var_dir
        base_url, key = f"{self.house.url}/api/tenants/{tenant['slug']}", tenant["api_key"]
        port = json.loads((var_dir / "ports.json").read_text())["replica"]
        self.rows = RowWatch(var_dir / "grafthouse.sqlite3")
        self.replica = ReplicaWatch(f"http://127.0.0.1:{port}")
        urls = (f"{self.house.url}/readyz", f"{self.replica.url}/ready")
        self.killer = Killer(var_dir, urls, self.rows, random.Random(self.seed))
        self.clients = [
            Client(n, base_url, key, self.pool, random.Random(f"{self.seed} client {n}"))
            for n in range(NUM_CLIENTS)
        ]
        names = (SHARED, *(f"own-{n}" for n in range(NUM_CLIENTS)))
        self.askers = [
            Asker(self.house.url, key, names, random.Random(f"{self.seed} asker {n}"))
            for n in range(NUM_ASKERS)
        ]

    def run(self, seconds: float) -> None:
        with ExitStack() as watching:
            for watch in (self.rows, self.replica):
                watching.callback(_begin(watch))
            base = self._base_answer()
            with ExitStack() as fire:
                for one in (*self.clients, *self.askers, self.killer):
                    fire.callback(_begin(one))
                time.sleep(seconds)
            quiet_since = time.time()
            started = time.monotonic()
            self._end_uploads()
            wait_for("no version in work", lambda: not any(self.rows.working.values()), 90)
            self.figures["settled_s"] = time.monotonic() - started
            self._ask_for_all()
        books = self._books(quiet_since)
        self._judge(books, base)

    def _base_answer(self) -> Answer:
        asker = Asker(self.house.url, self.clients[0].api_key, (), random.Random(0))
        with requests.Session() as session:
            session.headers["authorization"] = f"Bearer {asker.api_key}"
            return wait_for("an answer of the base", partial(asker.ask, session, BASE_NAME))

    def _end_uploads(self) -> None:
        """What is left are sessions whose opening nobody was told of: they are listed, and end."""
        client = self.clients[0]
        wait_for("the web", lambda: requests.get(f"{self.house.url}/readyz", timeout=5).ok)
        client.session = requests.Session()
        client.session.headers["authorization"] = f"Bearer {client.api_key}"
        with client.session:
            opened = client.ask("sessions", "GET", "uploads/?limit=100")[1]["results"]
            self.figures["sessions_left"] = len(opened)
            for one in opened:
                status, _ = client.ask("cancel", "POST", f"uploads/{one['id']}/cancel/")
                if status != 200:
                    self.faults.append(f"{one['id']} cannot be cancelled: {status}")

    def _ask_for_all(self) -> None:
        """Each name is answered again, by the version that it means, or refused for good."""
        asker = self.askers[0]
        with requests.Session() as session:
            session.headers["authorization"] = f"Bearer {asker.api_key}"
            for name in asker.names:
                adapter = session.get(f"{self.clients[0].base_url}/adapters/{name}/", timeout=30)
                active = adapter.json().get("active_version")
                if active is not None:
                    answer = wait_for(name, partial(asker.ask, session, name), 30)
                    if answer.fingerprint != active["digest"]:
                        self.faults.append(f"{name} is {active}, answered {answer}")

    def _books(self, quiet_since: float) -> dict[str, Any]:
        lines = (self.house.var_dir / "valkey" / "valkey.conf").read_text().splitlines()
        store = dict(line.split(" ", 1) for line in lines)
        redis_url = f"redis://:{store['requirepass']}@{store['bind']}:{store['port']}/0"
        inherited = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
        done = subprocess.run(
            [sys.executable, "-m", "tests.e2e.chaos.books", str(quiet_since)],
            cwd=ROOT_DIR,
            env={**inherited, "VAR_DIR": str(self.house.var_dir), "REDIS_URL": redis_url},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        books: dict[str, Any] = json.loads(done.stdout)
        return books

    def _judge(self, books: dict[str, Any], base: Answer) -> None:
        self.faults += books.pop("faults")
        for one in (*(client.told for client in self.clients), *self.askers):
            self.faults += one.faults
        self.faults += [
            f"a version was {state} for {seconds:.0f} s"
            for state, seconds in self.rows.longest_s.items()
            if seconds > MAX_WORKING_S
        ]
        self.faults += self._digest_faults()
        self._judge_answers(books["active"], base)
        self._judge_activations(books.pop("active"))
        self._keep_figures(books)

    def _digest_faults(self) -> list[str]:
        """What a version serves is what was uploaded as it, from its first day to its last."""
        told = {label: d for one in self.clients for label, d in one.told.digests.items()}
        return [
            f"{label} was uploaded as {told.get(label, '?')[:12]}, its row had {found}"
            for label, found in self.rows.digests.items()
            if len(found) > 1 or told.get(label, next(iter(found))) not in found
        ]

    def _judge_answers(self, active: list[tuple[str, int, float, float]], base: Answer) -> None:
        texts: dict[str, str] = {base.fingerprint: base.text}
        for answer in (one for asker in self.askers for one in asker.answers):
            if answer.fingerprint == base.fingerprint or answer.text == base.text:
                self.faults.append(f"the base answered: {answer}")
            if texts.setdefault(answer.fingerprint, answer.text) != answer.text:
                self.faults.append(f"one digest, two answers: {answer}")
            if self.rows.digests.get(answer.served) != {answer.fingerprint}:
                self.faults.append(f"another digest than the version's: {answer}")
            if "@" in answer.model and answer.served != answer.model:
                self.faults.append(f"another version than asked for: {answer}")
            if "@" not in answer.model and not _was_active(answer, active):
                self.faults.append(f"not active at that time: {answer}")

    def _judge_activations(self, active: list[tuple[str, int, float, float]]) -> None:
        """None without a replica that reports it."""
        for name, number, since, _until in active:
            digests = self.rows.digests.get(f"{name}@{number}", set())
            window = (since - REPORT_S, since + SILENCE_S)
            if not any(self.replica.has_reported(digest, *window) for digest in digests):
                self.faults.append(f"{name}@{number} became active, and no replica reported it")
        self.figures["activations"] = len(active)

    def _keep_figures(self, books: dict[str, Any]) -> None:
        acts = sum((client.told.acts for client in self.clients), Counter[tuple[str, int]]())
        self.figures |= {
            "kills": dict(self.killer.kills),
            "acts": {f"{act} {status or 'lost'}": n for (act, status), n in sorted(acts.items())},
            "answers": sum(len(asker.answers) for asker in self.askers),
            "refusals": dict(sum((Counter(one.refusals) for one in self.askers), Counter[str]())),
            "longest_s": {state: round(s, 1) for state, s in self.rows.longest_s.items()},
            "longest_work_s": round(self.rows.longest_work_s, 1),
            **books,
        }


def _was_active(answer: Answer, active: list[tuple[str, int, float, float]]) -> bool:
    return any(
        answer.served == f"{name}@{number}"
        and since <= answer.ended_at
        and until >= answer.started_at - LAG_S
        for name, number, since, until in active
    )


def _begin(one: Runs) -> Any:
    """Starts it in a thread; returns what ends it."""
    is_over = threading.Event()
    thread = threading.Thread(target=one.run, args=(is_over,), daemon=True)
    thread.start()

    def end() -> None:
        is_over.set()
        thread.join(120)

    return end
