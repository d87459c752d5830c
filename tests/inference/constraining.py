"""Drives requests whose answers are held to a grammar, and reads the answers."""

import json
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from inference.request import Constraint, Failed, SamplingParams
from inference.server.tokenizer import Tokenizer
from tests.inference.driving import PROMPT, Client, make_client
from tests.tiny import make_base


def held_to(constraint: Constraint, max_tokens: int = 400, **params: Any) -> SamplingParams:
    values: dict[str, Any] = {"temperature": 1.0, "seed": 1} | params
    return SamplingParams(max_tokens, constraint=constraint, **values)


def schema(value: Any, **fields: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(value, ensure_ascii=False), **fields)


class Patient(Client):
    """The first grammar waits for imports: seconds, not steps."""

    def drain(self, max_steps: int = 0) -> None:
        deadline = time.monotonic() + 120
        while self.engine.state().num_waiting or self.engine.state().num_running:
            assert time.monotonic() < deadline, "the engine does not come to rest"
            if not self.engine.step():
                time.sleep(0.001)
            self.engine.check_integrity()


def make_patient(base: Path, paths: dict[str, Path], **config: Any) -> Patient:
    return Patient(make_client(base, paths, **config).engine)


def text_of(tokens: list[int]) -> str:
    return tokenizer().vocabulary.text(tokens)


@cache
def tokenizer() -> Tokenizer:
    """Every tiny base has the same."""
    with TemporaryDirectory() as folder:
        return Tokenizer.load(make_base(Path(folder)), None)


def error_of(client: Client, constraint: Constraint, **params: Any) -> Failed:
    name = client.submit(PROMPT[:5], held_to(constraint, **params))
    client.drain()
    (event,) = client.terminal(name)
    assert isinstance(event, Failed), event
    return event
