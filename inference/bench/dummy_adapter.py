"""Random adapters of a given rank on every projection, as files, for benchmarks."""

import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from inference.adapter_loader import CONFIG_NAME, WEIGHTS_NAME
from inference.model_spec import ModelSpec

# So many have numbers of their own; the others' weights are links to theirs.
NUM_DISTINCT = 8


def write_dummy_adapters(folder: Path, spec: ModelSpec, rank: int, count: int) -> list[Path]:
    """count versions below folder: by lora_alpha each has bytes, and so a digest, of its own."""
    paths = [
        write_dummy_adapter(folder / str(number), spec, rank, number)
        for number in range(min(count, NUM_DISTINCT))
    ]
    for number in range(NUM_DISTINCT, count):
        source, path = paths[number % NUM_DISTINCT], folder / str(number)
        path.mkdir()
        os.link(source / WEIGHTS_NAME, path / WEIGHTS_NAME)
        config = json.loads((source / CONFIG_NAME).read_text("utf-8"))
        config["lora_alpha"] = rank * (1 + number / count)
        (path / CONFIG_NAME).write_text(json.dumps(config), "utf-8")
        paths.append(path)
    return paths


def write_dummy_adapter(folder: Path, spec: ModelSpec, rank: int, seed: int) -> Path:
    """Writes PEFT's two files in bf16 to folder and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted({name.rsplit(".", 1)[1] for name in spec.projections()})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank}
    config |= {"target_modules": names, "bias": "none"}
    (folder / CONFIG_NAME).write_text(json.dumps(config), "utf-8")
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for module, (num_in, num_out) in spec.lora_modules().items():
        prefix = f"base_model.model.{module}.lora_"
        a = torch.randn(rank, num_in, generator=generator) * num_in**-0.5
        b = torch.randn(num_out, rank, generator=generator) * 0.01
        tensors[prefix + "A.weight"] = a.to(torch.bfloat16)
        tensors[prefix + "B.weight"] = b.to(torch.bfloat16)
    save_file(tensors, folder / WEIGHTS_NAME)
    return folder
