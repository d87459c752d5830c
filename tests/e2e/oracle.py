"""What transformers and PEFT answer to a chat prompt, greedily, in float32."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tests.inference.oracle import Oracle

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import AutoTokenizer


class ChatOracle:
    """adapters: name → PEFT folder. One user message in, the assistant's text out."""

    def __init__(self, model_dir: Path, adapters: Mapping[str, Path]) -> None:
        self._oracle = Oracle(model_dir, adapters)
        self._tokenizer = AutoTokenizer.from_pretrained(model_dir)

    def answers(self, prompts: Sequence[str], adapter: str | None, max_tokens: int) -> list[str]:
        """adapter: a name, None for the base. All in one generate."""
        eos = [self._tokenizer.eos_token_id]
        ids = [self._ids([_user(prompt)], add_generation_prompt=True) for prompt in prompts]
        found = self._oracle.greedy_batch(ids, max_tokens, adapter, eos)
        return [self._tokenizer.decode(out, skip_special_tokens=True) for out in found]

    def loss(
        self, pairs: Sequence[tuple[str, str]], adapter: str | None, system_prompt: str
    ) -> tuple[float, int]:
        """Mean negative log-likelihood of the answers' tokens, the end token too; how many."""
        told = [{"role": "system", "content": system_prompt}] if system_prompt else []
        values: list[float] = []
        for prompt, answer in pairs:
            turns = [*told, _user(prompt)]
            opened = self._ids(turns, add_generation_prompt=True)
            closed = self._ids([*turns, {"role": "assistant", "content": answer}])
            end = closed.index(self._tokenizer.eos_token_id, len(opened)) + 1
            logits = self._oracle.logits(closed[:end], adapter)[len(opened) - 1 : -1]
            wanted = torch.tensor(closed[len(opened) : end])[:, None]
            values += (-torch.log_softmax(logits, -1).gather(1, wanted)).flatten().tolist()
        return sum(values) / len(values), len(values)

    def _ids(self, turns: list[dict[str, str]], **options: bool) -> list[int]:
        ids: list[int] = self._tokenizer.apply_chat_template(turns, return_dict=True, **options)[
            "input_ids"
        ]
        return ids


def _user(prompt: str) -> dict[str, str]:
    return {"role": "user", "content": prompt}
