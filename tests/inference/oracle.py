"""transformers and PEFT as the oracle: one request at a time, fp32, greedy."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM


class Oracle:
    """adapters: name → PEFT folder. The adapter of a call is its name, None for the base."""

    def __init__(self, base: Path, adapters: Mapping[str, Path] | None = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
            for name, path in (adapters or {}).items():
                if isinstance(self._model, PeftModel):
                    self._model.load_adapter(path, adapter_name=name)
                else:
                    self._model = PeftModel.from_pretrained(self._model, path, adapter_name=name)
        self._model.eval()

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int], adapter: str | None = None) -> torch.Tensor:
        """[T, V] fp32."""
        ids = torch.tensor([list(token_ids)])
        if adapter is not None:
            self._model.set_adapter(adapter)
        elif isinstance(self._model, PeftModel):
            with self._model.disable_adapter():
                return self._model(input_ids=ids).logits[0].float()
        return self._model(input_ids=ids).logits[0].float()

    def greedy(
        self,
        token_ids: Sequence[int],
        num_tokens: int,
        adapter: str | None = None,
        eos: Sequence[int] = (),
    ) -> list[int]:
        """By the model's own generate, which keeps a cache of its own."""
        return self.greedy_batch([token_ids], num_tokens, adapter, eos)[0]

    def greedy_batch(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        adapter: str | None = None,
        eos: Sequence[int] = (),
    ) -> list[list[int]]:
        """All prompts in one generate, padded on the left. An answer ends with its eos, if any."""
        longest = max(map(len, prompts))
        # The padding is masked: any id will do.
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        options = {"max_new_tokens": num_tokens, "do_sample": False, "attention_mask": mask}
        options |= {"eos_token_id": list(eos) or None, "pad_token_id": 0}
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            if adapter is not None:
                self._model.set_adapter(adapter)
                out = self._model.generate(input_ids=ids, **options)
            elif isinstance(self._model, PeftModel):
                with self._model.disable_adapter():
                    out = self._model.generate(input_ids=ids, **options)
            else:
                out = self._model.generate(input_ids=ids, **options)
        return [_until(row[longest:].tolist(), eos) for row in out]


def _until(tokens: list[int], eos: Sequence[int]) -> list[int]:
    ends = [index for index, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0] + 1] if ends else tokens
