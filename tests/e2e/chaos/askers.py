"""Programs that chat all the while, and keep what they were answered."""

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import requests

PROMPT = "Tell me about order 12345 for Ann in Rome, 3 mugs."
# Not there (any more); its replica is down; it died while it answered: said, and never another's.
REFUSALS = frozenset({404, 502, 503})


@dataclass(frozen=True)
class Answer:
    """Times: Unix seconds. served: the model as the answer names it."""

    model: str
    started_at: float
    ended_at: float
    served: str
    fingerprint: str
    text: str


@dataclass
class Asker:
    url: str
    api_key: str
    names: tuple[str, ...]
    rng: random.Random
    answers: list[Answer] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def run(self, is_over: threading.Event) -> None:
        with requests.Session() as session:
            session.headers["authorization"] = f"Bearer {self.api_key}"
            while not is_over.wait(self.rng.uniform(0, 0.1)):
                name = self.rng.choice(self.names)
                pinned = f"{name}@{self.rng.randint(1, 9)}"
                self.ask(session, self.rng.choice((name, name, name, pinned)))

    def ask(self, session: requests.Session, model: str) -> Answer | None:
        started_at = time.time()
        messages = [{"role": "user", "content": PROMPT}]
        body = {"model": model, "messages": messages, "max_tokens": 12, "temperature": 0}
        try:
            where = f"{self.url}/v1/chat/completions"
            answer = session.post(where, json=body, timeout=60)
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
            time.sleep(0.1)
            return None
        if answer.status_code == 200:
            self.answers.append(_read(model, started_at, answer.json()))
            return self.answers[-1]
        self.refusals.append(f"{answer.status_code}")
        if answer.status_code not in REFUSALS:
            self.faults.append(f"chat with {model}: {answer.status_code} {answer.text[:300]}")
        return None


def _read(model: str, started_at: float, body: dict[str, Any]) -> Answer:
    text = body["choices"][0]["message"]["content"]
    return Answer(
        model, started_at, time.time(), body["model"], body["system_fingerprint"], str(text)
    )
