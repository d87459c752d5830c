"""Clients that upload, activate, roll back, retire and delete, and take a lost answer as it comes.

What each of them was told is kept, to be held against the rows, the audit and the replica.
"""

import hashlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import requests

from tests.e2e.chaos.files import Files

LOST = 0
# Of a plan's limits, of what is not there any more, and of what another client was first to do.
EXPECTED = frozenset({LOST, 200, 201, 202, 204, 403, 404, 409})
TIMEOUT_S = 45.0
SHARED = "shared"


class SlowBody:
    """A request's body over so long that a kill finds it half sent."""

    def __init__(self, content: bytes, seconds: float) -> None:
        self._content, self._at = content, 0
        self._pause_s = seconds / 8

    def __len__(self) -> int:
        return len(self._content)

    def read(self, size: int = -1) -> bytes:
        time.sleep(self._pause_s)
        chunk = self._content[self._at :][: len(self._content) // 8 + 1]
        self._at += len(chunk)
        return chunk


@dataclass
class Told:
    """One client. digests: what was uploaded as a version whose number was told."""

    acts: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)


@dataclass
class Client:
    """One customer's program. base_url: of the tenant's part of the admin API."""

    index: int
    base_url: str
    api_key: str
    pool: Sequence[Files]
    rng: random.Random
    told: Told = field(default_factory=Told)
    session: requests.Session = field(default_factory=requests.Session)
    num_once: int = 0

    def run(self, is_over: threading.Event) -> None:
        self.session.headers["authorization"] = f"Bearer {self.api_key}"
        acts: list[tuple[Callable[[str], None], int]] = [
            (self.upload, 6),
            (self.upload_in_parts, 5),
            (self.activate, 6),
            (self.roll_back, 4),
            (self.retire, 2),
            (self.delete, 4),
            (self.retire_adapter, 1),
            (self.once, 1),
        ]
        verbs, weights = zip(*acts, strict=True)
        with self.session:
            while not is_over.is_set():
                [verb] = self.rng.choices(verbs, weights)
                verb(self.rng.choice((f"own-{self.index}", SHARED)))
                is_over.wait(self.rng.uniform(0, 0.3))

    def ask(self, act: str, method: str, path: str, **kwargs: Any) -> tuple[int, Any]:
        """(status, body); LOST when no answer came."""
        try:
            answer = self.session.request(
                method, f"{self.base_url}/{path}", timeout=TIMEOUT_S, **kwargs
            )
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
            # Nobody listens: not asked again at once.
            time.sleep(0.1)
            self.told.acts[act, LOST] += 1
            return LOST, {}
        except requests.Timeout:
            self.told.faults.append(f"{act} {path}: no answer within {TIMEOUT_S:g} s")
            return LOST, {}
        self.told.acts[act, answer.status_code] += 1
        if answer.status_code not in EXPECTED:
            self.told.faults.append(f"{act} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.status_code, answer.json() if answer.content else {}

    def upload(self, name: str) -> int | None:
        files = self.rng.choice(self.pool)
        sent = {"config": files.config, "weights": files.weights}
        request = requests.Request("POST", self.base_url, files=sent).prepare()
        assert isinstance(request.body, bytes)
        status, body = self.ask(
            "upload",
            "POST",
            f"adapters/{name}/versions/",
            data=SlowBody(request.body, self.rng.uniform(0, 0.6)),
            headers={"content-type": request.headers["content-type"]},
        )
        if status != 201:
            return None
        self.told.digests[f"{name}@{body['number']}"] = files.digest
        return int(body["number"])

    def upload_in_parts(self, name: str) -> None:
        files = self.rng.choice(self.pool)
        archive = files.archive()
        named = {"filename": f"client-{self.index}.tar", "adapter": name}
        sent = {"bytes": len(archive), "purpose": "fine-tune"}
        status, body = self.ask("open", "POST", "uploads/", json=named | sent)
        if status == 200:
            self.send_parts(body["id"], archive)
            self.end_parts(name, body["id"], files)
        elif status == 403:
            self.cancel_unknown(named["filename"])

    def cancel_unknown(self, filename: str) -> None:
        """Those of mine that were opened, and whose id I was never told."""
        _, body = self.ask("sessions", "GET", "uploads/?limit=100")
        for one in body.get("results", ()):
            if one["filename"] == filename:
                self.ask("cancel", "POST", f"uploads/{one['id']}/cancel/")

    def send_parts(self, upload_id: str, archive: bytes) -> None:
        """Whatever was lost on the way is asked for and sent again, as the command line does."""
        size = len(archive) // 3 + 1
        parts = {n + 1: archive[n * size :][:size] for n in range(3)}
        for _attempt in range(20):
            status, body = self.ask("resume", "GET", f"uploads/{upload_id}/")
            there = {part["number"]: part["sha256"] for part in body.get("parts", ())}
            sums = {n: hashlib.sha256(part).hexdigest() for n, part in parts.items()}
            if wrong := {n for n, found in there.items() if found != sums[n]}:
                self.told.faults.append(f"{upload_id}: parts {wrong} are others than were sent")
            for number in sums.keys() - there.keys():
                query = f"number={number}&sha256={sums[number]}"
                data = {"data": parts[number]}
                self.ask("part", "POST", f"uploads/{upload_id}/parts/?{query}", files=data)
            if status == 200 and len(there) == len(parts):
                return
            time.sleep(self.rng.uniform(0, 0.2))

    def end_parts(self, name: str, upload_id: str, files: Files) -> None:
        if self.rng.random() < 0.2:
            self.ask("cancel", "POST", f"uploads/{upload_id}/cancel/")
            return
        for _attempt in range(50):
            status, body = self.ask("complete", "POST", f"uploads/{upload_id}/complete/", json={})
            if status == 200 and body["version"] is not None:
                self.told.digests[f"{name}@{body['version']['number']}"] = files.digest
            if status != LOST:
                return

    def versions(self, name: str, *states: str) -> list[dict[str, Any]]:
        _, body = self.ask("list", "GET", f"adapters/{name}/versions/?limit=100")
        return [one for one in body.get("results", ()) if one["state"] in states]

    def change(self, act: str, method: str, name: str, number: int, verb: str = "") -> int:
        return self.ask(act, method, f"adapters/{name}/versions/{number}/{verb}")[0]

    def activate(self, name: str) -> None:
        if found := self.versions(name, "ready", "failed", "retired"):
            number = self.rng.choice(found[:6])["number"]
            self.change("activate", "POST", name, number, "activate/")

    def roll_back(self, name: str) -> None:
        """To what was active last."""
        found = [one for one in self.versions(name, "ready") if one["activated_at"]]
        if found:
            last = max(found, key=lambda one: str(one["activated_at"]))
            self.change("roll back", "POST", name, last["number"], "activate/")

    def retire(self, name: str) -> None:
        if found := self.versions(name, "ready", "failed"):
            self.change("retire", "POST", name, self.rng.choice(found)["number"], "retire/")

    def delete(self, name: str) -> None:
        states = ("uploaded", "validating", "ready", "rejected", "failed", "retired")
        for one in self.rng.sample(found := self.versions(name, *states), min(3, len(found))):
            self.change("delete", "DELETE", name, one["number"])

    def retire_adapter(self, name: str) -> None:
        if name != SHARED:
            self.ask("retire adapter", "POST", f"adapters/{name}/retire/")

    def once(self, _name: str) -> None:
        """A whole life: uploaded, activated when it is ready, and deleted, with its adapter."""
        self.num_once += 1
        name = f"once-{self.index}-{self.num_once}"
        if (number := self.upload(name)) is not None:
            for _attempt in range(20):
                if self.versions(name, "ready"):
                    break
                time.sleep(0.1)
            self.change("activate", "POST", name, number, "activate/")
        time.sleep(self.rng.uniform(0, 2))
        self.ask("delete adapter", "DELETE", f"adapters/{name}/")
