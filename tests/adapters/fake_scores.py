"""How the fake replica scores and answers: bytes for tokens, a likelihood for each digest.

Shapes as the engine's front answers them; tests/e2e runs the same through the real one.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

# As tests.tiny writes its tokenizer: bytes, then three control tokens; <|im_end|> ends a turn.
IM_START, IM_END = 257, 258
MAX_MODEL_LEN = 512


def tokens_of(body: dict[str, Any]) -> list[int]:
    if "messages" not in body:
        return list(body["prompt"].encode())
    ids: list[int] = []
    for turn in body["messages"]:
        ids += [IM_START, *f"{turn['role']}\n{turn['content']}".encode(), IM_END, *b"\n"]
    opening = [IM_START, *b"assistant\n"] if body.get("add_generation_prompt", True) else []
    return ids + opening


@dataclass
class FakeScores:
    """logprobs: of every token, by digest ("base"); prompted: of the base behind a system prompt.

    served: digest asked for → what answers instead. failures: statuses of the next calls.
    """

    logprobs: dict[str, float] = field(default_factory=dict)
    prompted: float = -2.5
    served: dict[str, str] = field(default_factory=dict)
    failures: list[tuple[int, str]] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    delay_s: float = 0.0

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids = tokens_of(body)
        answer = {"tokens": ids, "count": len(ids), "max_model_len": MAX_MODEL_LEN}
        return web.json_response(answer)

    async def answer(self, request: web.Request, held: Sequence[str]) -> web.Response:
        body = await request.json()
        self.calls.append((request.path, body, dict(request.headers)))
        await asyncio.sleep(self.delay_s)
        if self.failures:
            status, code = self.failures.pop(0)
            return web.json_response({"error": {"message": code, "code": code}}, status=status)
        used = "base" if body["model"] == "tiny-base" else body["model"]
        if used != "base" and used not in held:
            error = {"message": "no such adapter", "code": "model_not_found"}
            return web.json_response({"error": error}, status=404)
        make = self._chat if "messages" in body else self._completions
        return web.json_response(
            {"model": body["model"], "system_fingerprint": self.served.get(used, used)}
            | make(body, used)
        )

    def _chat(self, body: dict[str, Any], used: str) -> dict[str, Any]:
        text = f"{used[:8]} to {body['messages'][-1]['content']}"
        choice = {"index": 0, "message": {"role": "assistant", "content": text}}
        return {"choices": [choice], "usage": usage(len(tokens_of(body)), 4)}

    def _completions(self, body: dict[str, Any], used: str) -> dict[str, Any]:
        if isinstance(body["prompt"], str):
            choice = {"index": 0, "text": f"{used[:8]} goes on"}
            return {"choices": [choice], "usage": usage(len(body["prompt"]), 4)}
        assert (body["echo"], body["max_tokens"], body["logprobs"]) == (True, 0, 0)
        choices = [self._scored(i, ids, used) for i, ids in enumerate(body["prompt"])]
        # The order of choices is nobody's promise.
        return {"choices": choices[::-1], "usage": usage(sum(map(len, body["prompt"])), 0)}

    def _scored(self, index: int, ids: list[int], used: str) -> dict[str, Any]:
        is_prompted = bytes(i for i in ids if i < 256).startswith((b"system", b"Be"))
        each = self.prompted if used == "base" and is_prompted else self.logprobs.get(used, -3.0)
        values = [None, *([each] * (len(ids) - 1))]
        logprobs = {"tokens": [str(i) for i in ids], "token_logprobs": values}
        return {"index": index, "text": "", "logprobs": logprobs, "finish_reason": "length"}


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}
