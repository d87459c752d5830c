"""The official Node client as a process, asked by lines of JSON."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gateway.conftest import Customer
from tests.gateway.live import ROOT_DIR

SCRIPT = Path(__file__).parent / "client.cjs"
NODE_MODULES = ROOT_DIR / "frontend" / "node_modules"


@dataclass(frozen=True)
class Outcome:
    """seen: the chunks read. error: class, status and OpenAI's four, of whatever was thrown."""

    seen: list[Any]
    value: Any = None
    error: dict[str, Any] | None = None
    requestID: str | None = None
    ownID: str | None = None


class Node:
    def __init__(self) -> None:
        assert (NODE_MODULES / "openai").is_dir(), "scripts/setup node installs it"
        self._process = subprocess.Popen(
            ["scripts/node", "node", str(SCRIPT)],
            cwd=ROOT_DIR,
            env=os.environ | {"NODE_PATH": str(NODE_MODULES)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, customer: Customer, path: str, *args: Any, **asked: Any) -> None:
        """read: "whole" (default), "stream" and the others of client.cjs. client: its options."""
        options = {"baseURL": f"{customer.web.url}/v1", "apiKey": customer.api_key, "maxRetries": 0}
        options |= asked.pop("client", {})
        line = {"read": "whole", **asked, "path": path, "args": args, "client": options}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def ask(self, customer: Customer, path: str, *args: Any, **asked: Any) -> Outcome:
        self.send(customer, path, *args, **asked)
        assert self._process.stdout is not None
        return Outcome(**json.loads(self._process.stdout.readline()))

    def kill(self) -> None:
        with self._process as process:
            process.kill()
