"""A fake replica as a process of its own, to be killed: `python -m tests.gateway.replica_process
GATE DIGEST`. It prints its port.

A prompt that begins with "wait" gets its first token, any other its sixth, once the file GATE is
there.
"""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.gateway.fake_replica import Behaviour, FakeReplica
from tests.gateway.live import ROOT_DIR

NUM_BEFORE_GATE = 5
NUM_TOKENS = 10


class GatedReplica(FakeReplica):
    def __init__(self, gate: Path, digest: str) -> None:
        super().__init__()
        self._gate = gate
        self.digests.add(digest)
        self.behaviour = Behaviour(tokens=[f"{number} " for number in range(NUM_TOKENS)])

    async def _frames(
        self, body: dict[str, Any], behaviour: Behaviour, is_chat: bool
    ) -> AsyncIterator[str]:
        num_free = 0 if body["messages"][-1]["content"].startswith("wait") else NUM_BEFORE_GATE
        # The role comes before the tokens.
        number = -1
        async for frame in super()._frames(body, behaviour, is_chat):
            while number >= num_free and not self._gate.exists():
                await asyncio.sleep(0.02)
            yield frame
            number += 1


def start(gate: Path, digest: str) -> tuple[subprocess.Popen[bytes], str]:
    """(the process, its URL)"""
    command = [sys.executable, "-m", "tests.gateway.replica_process", str(gate), digest]
    process = subprocess.Popen(command, cwd=ROOT_DIR, stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, process.stdout.readline().decode().strip()


if __name__ == "__main__":
    print(GatedReplica(Path(sys.argv[1]), sys.argv[2]).url, flush=True)
    threading.Event().wait()
