"""Prompts and ranks on both sides of every tile's border, and the truth about them: transformers on
weights into which the adapter was merged by hand.
"""

import json
import shutil
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from inference.request import Failed, Token
from tests.inference.driving import Client, greedy, make_engine
from tests.tiny import make_adapter, make_base

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import AutoModelForCausalLM

MAX_MODEL_LEN = 2400
LENGTHS = (1, 15, 16, 17, 127, 128, 129, 400, 512, 2335, MAX_MODEL_LEN - 1)
RANKS = (1, 8, 16, 17, 64, 128)
NUM_LOGPROBS = 20
# (length of the prompt, rank of the adapter; None: the base)
Row = tuple[int, int | None]


def prompt(length: int) -> list[int]:
    """Of its own from the first token on: nothing is found in the prefix cache."""
    return [(length * 31 + 7 * i * i + i) % 256 for i in range(length)]


def merge(base: Path, adapter: Path, folder: Path) -> Path:
    """A checkpoint of W + alpha / r * B A, without any LoRA."""
    shutil.copytree(base, folder)
    weights = load_file(base / "model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    halves = load_file(adapter / "adapter_model.safetensors")
    for name, a in halves.items():
        if ".lora_A." not in name:
            continue
        module = name.removeprefix("base_model.model.").replace("lora_A.", "")
        b = halves[name.replace("lora_A", "lora_B")]
        weights[module] += config["lora_alpha"] / config["r"] * (b.double() @ a.double()).float()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Sizes:
    """A base with one adapter of every rank; device: where the truth is computed, in fp32."""

    def __init__(self, folder: Path, ranks: Sequence[int], device: str, **shape: Any) -> None:
        self.base = make_base(folder / "base", max_position_embeddings=MAX_MODEL_LEN, **shape)
        self.paths = {
            rank: make_adapter(folder / f"r{rank}", self.base, r=rank, seed=rank) for rank in ranks
        }
        self._device = device
        self._merged: dict[int | None, Any] = {}
        self.truth = cache(self._truth)

    def _model(self, rank: int | None) -> Any:
        if rank not in self._merged:
            path = self.base
            if rank is not None:
                path = merge(self.base, self.paths[rank], self.base.parent / f"merged{rank}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = AutoModelForCausalLM.from_pretrained(path)
            self._merged[rank] = model.float().to(self._device).eval()
        return self._merged[rank]

    @torch.inference_mode()
    def _truth(self, row: Row, answer: tuple[int, ...]) -> torch.Tensor:
        """Logprobs of every token of the answer, given the prompt and those before it."""
        length, rank = row
        ids = torch.tensor([[*prompt(length), *answer[:-1]]], device=self._device)
        logits = self._model(rank)(input_ids=ids).logits[0, length - 1 :]
        return torch.log_softmax(logits.float(), -1).cpu()

    def client(self, **config: Any) -> Client:
        config = {"max_lora_rank": max(RANKS), "max_model_len": MAX_MODEL_LEN} | config
        client = Client(make_engine(self.base, **config))
        for rank, path in self.paths.items():
            client.engine.load_adapter(f"r{rank}", str(path))
        return client

    def sweep(self, client: Client, rows: Sequence[Row], batch_size: int) -> float:
        """The largest error of all rows, so many at once."""
        starts = range(0, len(rows), batch_size)
        return max(self.error(client, rows[at : at + batch_size]) for at in starts)

    def error(self, client: Client, rows: Sequence[Row]) -> float:
        """The largest, in a logprob, of a batch of these rows: of the token after the prompt, and
        of the one decoded after it.
        """
        ids = []
        for length, rank in rows:
            params = greedy(min(2, MAX_MODEL_LEN - length), num_logprobs=NUM_LOGPROBS)
            name = None if rank is None else f"r{rank}"
            # A row of its own: the same prompt beside it is computed, not found.
            ids.append(client.submit(prompt(length), params, name, salt=str(len(ids))))
        client.drain()
        return max(self._row_error(client, *both) for both in zip(ids, rows, strict=True))

    def _row_error(self, client: Client, request_id: str, row: Row) -> float:
        events = client.events[request_id]
        assert not [one for one in events if isinstance(one, Failed)], (row, events)
        tokens = [one for one in events if isinstance(one, Token)]
        wanted = self.truth(row, tuple(one.token_id for one in tokens))
        worst = 0.0
        for token, truth in zip(tokens, wanted, strict=True):
            assert token.logprobs is not None and len(token.logprobs.top) >= NUM_LOGPROBS
            for token_id, logprob in token.logprobs.top:
                worst = max(worst, abs(logprob - float(truth[token_id])))
                # NaN is larger than nothing.
                assert logprob == logprob, (row, token)
        return worst

    def effect(self, row: Row) -> float:
        """How far the adapter moves the logprobs: a probe must move them far more than errors."""
        length, _ = row
        token = (0,)
        moved = self.truth(row, token) - self.truth((length, None), token)
        return float(moved.abs().max())
