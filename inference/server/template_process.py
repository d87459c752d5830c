"""The front's side of template_child: one process, begun when first needed, one render at once."""

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference.errors import EngineError, ErrorCode
from inference.server.fields import invalid

ROOT_DIR = Path(__file__).resolve().parents[2]
# The child's own timer counts CPU time; this is for a machine so busy that it gets none.
ANSWER_TIMEOUT_S = 30.0
# A render is no longer than the messages, several times over.
MAX_ANSWER_BYTES = 32 << 20
# What ran out of time costs others its time limit once in so long.
REFUSED_FOR_S = 60.0
MAX_REFUSED = 1024


class TemplateProcess:
    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        # sha256 of a template → until when it is refused unseen.
        self._refused: dict[bytes, float] = {}

    async def render(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
    ) -> str:
        """Raises EngineError (400) for a template that fails, or takes too much time or memory."""
        name = hashlib.sha256(source.encode()).digest()
        if self._refused.get(name, 0.0) > time.monotonic():
            raise _too_slow()
        task = {"source": source, "special_tokens": dict(special_tokens)}
        line = json.dumps(task | {"messages": messages, "tools": tools}).encode() + b"\n"
        # A client that leaves must not leave its answer for the next one to read.
        answer = await asyncio.shield(asyncio.ensure_future(self._exchange(line)))
        if answer is None:
            if len(self._refused) >= MAX_REFUSED:
                self._refused.clear()
            self._refused[name] = time.monotonic() + REFUSED_FOR_S
            raise _too_slow()
        if "text" not in answer:
            raise EngineError(ErrorCode(answer["code"]), answer["message"], answer["param"])
        return str(answer["text"])

    async def _exchange(self, line: bytes) -> dict[str, Any] | None:
        """None: the child ended instead of answering."""
        async with self._lock:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    answer = await self._ask(line)
            except (TimeoutError, ValueError, BrokenPipeError, ConnectionResetError):
                answer = b""
            if not answer.endswith(b"\n"):
                await self.close()
                return None
        found: dict[str, Any] = json.loads(answer)
        return found

    async def _ask(self, line: bytes) -> bytes:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "inference.server.template_child"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=ROOT_DIR,
                env={"PYTHONDONTWRITEBYTECODE": "1"},
                limit=MAX_ANSWER_BYTES,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line)
        await self._process.stdin.drain()
        return await self._process.stdout.readline()

    async def close(self) -> None:
        """Also by itself, after an answer that did not come."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()


def _too_slow() -> EngineError:
    message = "The chat template took more time or memory than a template may."
    return invalid("chat_template", message)
