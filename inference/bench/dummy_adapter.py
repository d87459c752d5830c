"""Random adapters of a given rank on every projection, as files, for benchmarks.

By the recipe that the peers were measured with: A ~ N(0, 1/in), B ~ N(0, 1e-6), alpha twice the
rank; NUM_DISTINCT have numbers of their own, the others' weights are links to theirs.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from inference.adapter_files import CONFIG_NAME, WEIGHTS_NAME
from inference.model_spec import ModelSpec

NUM_DISTINCT = 8


def write_dummy_adapters(
    folder: Path, spec: ModelSpec, rank: int, count: int, targets: Sequence[str] = ()
) -> list[Path]:
    """count versions below folder, a000 and on: each has a configuration, and so a digest, of its
    own. What is there already is kept. targets: names of projections, none for all.
    """
    paths = [folder / f"a{number:03d}" for number in range(count)]
    for number, path in enumerate(paths):
        if (path / CONFIG_NAME).is_file():
            continue
        if number < NUM_DISTINCT:
            write_dummy_adapter(path, spec, rank, number, targets=targets)
        else:
            path.mkdir(parents=True, exist_ok=True)
            os.link(paths[number % NUM_DISTINCT] / WEIGHTS_NAME, path / WEIGHTS_NAME)
            _write_config(path, spec, rank, targets)
    return paths


def write_dummy_adapter(
    folder: Path,
    spec: ModelSpec,
    rank: int,
    seed: int,
    b_std: float = 1e-3,
    targets: Sequence[str] = (),
) -> Path:
    """Writes PEFT's two files in bf16 to folder and returns it. The configuration comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for module, (num_in, num_out) in spec.lora_modules().items():
        if targets and module.rsplit(".", 1)[1] not in targets:
            continue
        prefix = f"base_model.model.{module}.lora_"
        a = torch.randn(rank, num_in, generator=generator, device=device) * num_in**-0.5
        b = torch.randn(num_out, rank, generator=generator, device=device) * b_std
        tensors[prefix + "A.weight"] = a.to(torch.bfloat16).cpu()
        tensors[prefix + "B.weight"] = b.to(torch.bfloat16).cpu()
    save_file(tensors, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    _write_config(folder, spec, rank, targets)
    return folder


def _write_config(folder: Path, spec: ModelSpec, rank: int, targets: Sequence[str]) -> None:
    names = sorted(targets) or sorted({name.rsplit(".", 1)[1] for name in spec.projections()})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        # Nobody looks it up; it makes the bytes this folder's own.
        "base_model_name_or_path": f"synthetic/{spec.name}#{folder.name}",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "target_modules": names,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
    }
    (folder / CONFIG_NAME).write_text(json.dumps(config), "utf-8")
