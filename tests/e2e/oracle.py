"""What transformers and PEFT say: greedy answers of the base and of an adapter, in float32."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


class Oracle:
    """One base model with adapters loaded by folder; answers chat prompts greedily."""

    def __init__(self, model_dir: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self.base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()

    @torch.inference_mode()
    def answer(self, prompts: Sequence[str], adapter: Path | None, max_tokens: int) -> list[str]:
        if adapter is None:
            return [self._generate(self.base, prompt, max_tokens) for prompt in prompts]
        model = PeftModel.from_pretrained(self.base, str(adapter)).eval()
        try:
            return [self._generate(model, prompt, max_tokens) for prompt in prompts]
        finally:
            self.base = model.unload()

    def _generate(self, model: Any, prompt: str, max_tokens: int) -> str:
        messages = [{"role": "user", "content": prompt}]
        ids = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**ids, max_new_tokens=max_tokens, do_sample=False)
        text: str = self.tokenizer.decode(
            out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True
        )
        return text
