"""What transformers and PEFT answer to a chat prompt, greedily, in float32."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

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
        ids = [self._ids(prompt) for prompt in prompts]
        found = self._oracle.greedy_batch(ids, max_tokens, adapter, eos)
        return [self._tokenizer.decode(out, skip_special_tokens=True) for out in found]

    def _ids(self, prompt: str) -> list[int]:
        messages = [{"role": "user", "content": prompt}]
        ids: list[int] = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        return ids
