"""Everything the engine process can be told, in one frozen value. Read nowhere else."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class EngineConfig:
    """model_path: a Hugging Face directory. None means: derived from the machine and the model.

    max_loras_per_batch: distinct adapters in one forward. max_lora_rank: largest rank of a module.
    max_batch_tokens: tokens of one forward; longer prompts are prefilled in chunks.
    kv_cache_bytes: KV memory; None: gpu_memory_fraction of the device, or 1 GiB on the CPU.
    host_adapter_bytes: adapters kept in host memory, least recently used leave first.
    """

    model_path: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    load_format: Literal["auto", "dummy"] = "auto"
    max_loras_per_batch: int = 8
    max_lora_rank: int = 64
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_batch_tokens: int | None = None
    kv_block_size: int = 16
    kv_cache_bytes: int | None = None
    gpu_memory_fraction: float = 0.9
    host_adapter_bytes: int = 4 << 30
    prefix_cache: bool = True
    num_threads: int | None = None
    seed: int | None = None
    tp: int = 1
