"""A random adapter of a given rank on every projection, as a file, for benchmarks."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from inference.adapter_loader import CONFIG_NAME, WEIGHTS_NAME
from inference.model_spec import ModelSpec


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
