"""Train the demo adapters with PEFT: `python -m demo.train BASE [NAME…]`, minutes on a CPU.

The loss is on the answer only. Adapters are written in bfloat16 (half the bytes, the same scores)
with the base model's public name in place of the local path, and with sorted targets.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from demo.data import Example, examples

ADAPTERS_DIR = Path(__file__).parent / "adapters"
BASE_MODEL_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
IGNORED = -100


@dataclass(frozen=True)
class Recipe:
    rank: int
    alpha: int
    targets: tuple[str, ...]
    num_epochs: int
    learning_rate: float
    use_rslora: bool = False
    batch_size: int = 8
    num_warmup_steps: int = 5


RECIPES = {
    "order-json": Recipe(8, 16, ATTENTION + MLP, num_epochs=3, learning_rate=1.5e-3),
    "ticket-triage": Recipe(16, 16, ATTENTION, num_epochs=8, learning_rate=6e-4, use_rslora=True),
    "support-voice": Recipe(4, 8, ("q_proj", "v_proj", *MLP), num_epochs=5, learning_rate=2e-3),
}


def train(base: Path, name: str, recipe: Recipe, device: str, folder: Path) -> None:
    """Train one adapter in float32 and save it into folder."""
    torch.manual_seed(0)
    started = time.monotonic()
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.to(device)
    model = get_peft_model(model, lora_config(recipe))
    tokenizer = AutoTokenizer.from_pretrained(base)
    rows = [tokenize(tokenizer, example) for example in examples(name, "train")]
    for epoch, loss in enumerate(run_epochs(model, rows, recipe)):
        seconds = time.monotonic() - started
        line = f"{name}: epoch {epoch + 1}/{recipe.num_epochs} loss {loss:.3f} {seconds:.0f} s"
        print(line, flush=True)
    save(model, folder)


def lora_config(recipe: Recipe) -> LoraConfig:
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=list(recipe.targets),
        use_rslora=recipe.use_rslora,
        lora_dropout=0.0,
    )


def tokenize(tokenizer: PreTrainedTokenizerBase, example: Example) -> tuple[list[int], int]:
    """Token ids of the whole conversation, and how many of them are the prompt."""
    chat = [{"role": "user", "content": example.message}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    prompt_ids = tokenizer(prompt, add_special_tokens=False).input_ids
    answer = f"{example.answer}{tokenizer.eos_token}"
    return prompt_ids + tokenizer(answer, add_special_tokens=False).input_ids, len(prompt_ids)


def run_epochs(model: Any, rows: list[tuple[list[int], int]], recipe: Recipe) -> Iterator[float]:
    """One pass over shuffled rows an epoch; yields its mean loss."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.0)
    num_steps = recipe.num_epochs * -(-len(rows) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1, (step + 1) / recipe.num_warmup_steps) * max(0.05, 1 - step / num_steps),
    )
    rng = random.Random(0)
    model.train()
    for _ in range(recipe.num_epochs):
        rng.shuffle(rows)
        losses = []
        for start in range(0, len(rows), recipe.batch_size):
            losses.append(backward(model, padded(rows[start : start + recipe.batch_size])))
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        yield sum(losses) / len(losses)


def backward(model: Any, batch: dict[str, torch.Tensor]) -> float:
    """Leaves the gradients; the batch's loss."""
    loss = model(**{key: rows.to(model.device) for key, rows in batch.items()}).loss
    loss.backward()
    return float(loss.item())


def padded(rows: list[tuple[list[int], int]]) -> dict[str, torch.Tensor]:
    width = max(len(ids) for ids, _ in rows)
    shape = (len(rows), width)
    batch = {
        "input_ids": torch.zeros(shape, dtype=torch.long),
        "attention_mask": torch.zeros(shape, dtype=torch.long),
        "labels": torch.full(shape, IGNORED),
    }
    for row, (ids, num_prompt) in enumerate(rows):
        tokens = torch.tensor(ids)
        batch["input_ids"][row, : len(ids)] = tokens
        batch["attention_mask"][row, : len(ids)] = 1
        batch["labels"][row, num_prompt : len(ids)] = tokens[num_prompt:]
    return batch


def save(model: Any, folder: Path) -> None:
    """PEFT's two files, made publishable: public base name, sorted targets, bfloat16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as raw:
        model.save_pretrained(raw)
        config = json.loads((Path(raw) / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = BASE_MODEL_NAME
        config["target_modules"] = sorted(config["target_modules"])
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
        weights = load_file(Path(raw) / "adapter_model.safetensors")
        halved = {key: weight.to(torch.bfloat16) for key, weight in weights.items()}
        save_file(halved, Path(raw) / "halved.safetensors", metadata={"format": "pt"})
        shutil.copyfile(Path(raw) / "halved.safetensors", folder / "adapter_model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo adapters.")
    parser.add_argument("base", type=Path, help="the base model's directory")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(RECIPES)}")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help="default: %(default)s")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(RECIPES):
        parser.error(
            f"no adapter named {', '.join(sorted(unknown))}; there are {', '.join(RECIPES)}"
        )
    for name in arguments.names or RECIPES:
        train(arguments.base, name, RECIPES[name], arguments.device, ADAPTERS_DIR / name)


if __name__ == "__main__":
    main()
