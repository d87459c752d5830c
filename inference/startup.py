"""From a configuration to a model on a device, with memory for KV blocks and adapter pages."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from inference.config import EngineConfig
from inference.decode_graphs import DecodeGraphs, bucket_sizes
from inference.errors import EngineError, ErrorCode
from inference.lora import LoraPool, num_pages_for
from inference.model_spec import ModelError, ModelSpec
from inference.models.llama import LlamaModel, ModelWeights
from inference.prompt_graphs import MAX_TOKENS, PromptGraphs
from inference.weights import dummy_weights, load_weights

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU_KV_BYTES = 1 << 30
CPU_BATCH_TOKENS = 512
CUDA_BATCH_TOKENS = 8192
# Of one launch that knows no lengths (kernels/attention/chunks.py).
ATTENTION_SCRATCH_BYTES = 128 << 20


@dataclass(frozen=True)
class Parts:
    """What an engine runs on. max_model_len in tokens; num_kv_blocks with the null block."""

    spec: ModelSpec
    model: LlamaModel
    kv: torch.Tensor
    lora: LoraPool
    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    max_batch_tokens: int
    graphs: DecodeGraphs | None
    last_tokens: torch.Tensor
    prompt_graphs: PromptGraphs | None

    @property
    def num_kv_blocks(self) -> int:
        return self.kv.shape[2]


def start(config: EngineConfig, spec: ModelSpec | None = None) -> Parts:
    """Loads everything. Raises EngineError when the configuration cannot be served.

    spec: a model without files, for benchmarks with load_format "dummy".
    """
    _check(config)
    spec = spec or ModelSpec.load(config.model_path)
    device = _device(config)
    if device.type == "cpu" and config.num_threads:
        torch.set_num_threads(config.num_threads)
    dtype = _dtype(config, spec, device)
    max_len = _max_model_len(config, spec)
    model = LlamaModel(spec, _weights(config, spec, dtype, device), max_len)
    num_pages = num_places(config, device) * num_pages_for(config.max_lora_rank)
    lora = LoraPool(spec, num_pages, config.max_lora_rank, dtype, device)
    by_device = CPU_BATCH_TOKENS if device.type == "cpu" else CUDA_BATCH_TOKENS
    batch_tokens = config.max_batch_tokens or by_device
    kv = _kv(config, spec, dtype, device, max_len, batch_tokens)
    max_len = _held_len(config, max_len, (kv.shape[2] - 1) * config.kv_block_size)
    last_tokens = torch.zeros(config.max_num_seqs, dtype=torch.int64, device=device)
    with _nothing_collected():
        graphs = _graphs(config, model, kv, lora, max_len, last_tokens)
        prompt_graphs = _prompt_graphs(config, model, kv, lora, max_len, batch_tokens, last_tokens)
    made = (model, kv, lora, device, dtype, max_len, batch_tokens, graphs, last_tokens)
    return Parts(spec, *made, prompt_graphs)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """A former engine's graphs, were they freed during a capture, would make it invalid."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _check(config: EngineConfig) -> None:
    positive = {
        "max_loras_per_batch": config.max_loras_per_batch,
        "max_lora_rank": config.max_lora_rank,
        "max_num_seqs": config.max_num_seqs,
        "kv_block_size": config.kv_block_size,
        "max_model_len": config.max_model_len,
        "max_batch_tokens": config.max_batch_tokens,
    }
    for name, value in positive.items():
        if value is not None and value < 1:
            raise EngineError(ErrorCode.INVALID_REQUEST, f"{name} must be at least 1, got {value}")
    if config.tp != 1:
        raise EngineError(
            ErrorCode.INVALID_REQUEST, f"tp {config.tp}: one device per engine is supported, tp 1"
        )


def num_places(config: EngineConfig, device: torch.device) -> int:
    """Adapters of the largest rank that the device holds: on CUDA one more than may be in use, as
    the next in turn is on its way meanwhile.
    """
    return config.max_loras_per_batch + (device.type == "cuda")


def _device(config: EngineConfig) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise EngineError(ErrorCode.INVALID_REQUEST, "device cuda: no CUDA device is available")
    return torch.device("cuda" if has_cuda and config.device != "cpu" else "cpu")


def _dtype(config: EngineConfig, spec: ModelSpec, device: torch.device) -> torch.dtype:
    """auto: float32 on the CPU, where it is exact and everywhere fast; the model's own on a GPU."""
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    if device.type == "cpu":
        return torch.float32
    return torch.float16 if spec.dtype == "float16" else torch.bfloat16


def _max_model_len(config: EngineConfig, spec: ModelSpec) -> int:
    wanted = config.max_model_len or spec.max_exact_len
    if wanted > spec.max_exact_len:
        raise ModelError(f"max_model_len {wanted}: the model's own limit is {spec.max_exact_len}")
    return wanted


def _weights(
    config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, device: torch.device
) -> ModelWeights:
    if config.load_format == "dummy":
        return dummy_weights(spec, dtype, device)
    return load_weights(config.model_path, spec, dtype, device)


def _held_len(config: EngineConfig, max_len: int, capacity: int) -> int:
    """capacity: of the KV memory, in tokens. Raises ModelError when more was asked for by name."""
    if capacity < max_len and config.max_model_len:
        raise ModelError(f"max_model_len {max_len}: the KV memory holds {capacity} tokens only")
    return min(max_len, capacity)


def _kv(
    config: EngineConfig,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    max_len: int,
    batch_tokens: int,
) -> torch.Tensor:
    """Zeros [L, 2, NB, BS, HKV, D]; no more blocks than max_num_seqs of max_len can use."""
    size = config.kv_block_size
    block_elements = spec.num_layers * 2 * size * spec.num_kv_heads * spec.head_dim
    block_bytes = block_elements * dtype.itemsize
    memory = config.kv_cache_bytes or _free_bytes(config, spec, dtype, device, batch_tokens)
    # One block a sequence more: admission leaves each that runs one for its next tokens.
    most = config.max_num_seqs * (-(-max_len // size) + 1)
    num_blocks = min(memory // block_bytes, most) + 1
    if num_blocks < 2:
        raise ModelError(f"no memory for KV: a block needs {block_bytes} bytes, {memory} are left")
    logger.info("KV cache: %d blocks of %d tokens", num_blocks - 1, size)
    shape = (spec.num_layers, 2, num_blocks, size, spec.num_kv_heads, spec.head_dim)
    return torch.zeros(shape, dtype=dtype, device=device)


def _graphs(
    config: EngineConfig,
    model: LlamaModel,
    kv: torch.Tensor,
    lora: LoraPool,
    max_len: int,
    last_tokens: torch.Tensor,
) -> DecodeGraphs | None:
    if kv.device.type == "cpu" or not config.cuda_graphs:
        return None
    graphs = DecodeGraphs(model, kv, lora, config.max_num_seqs, max_len, last_tokens)
    graphs.capture()
    return graphs


def _prompt_graphs(
    config: EngineConfig,
    model: LlamaModel,
    kv: torch.Tensor,
    lora: LoraPool,
    max_len: int,
    batch_tokens: int,
    last_tokens: torch.Tensor,
) -> PromptGraphs | None:
    if kv.device.type == "cpu" or not (config.cuda_graphs and config.prompt_graphs):
        return None
    limits = (batch_tokens, config.max_num_seqs, max_len)
    graphs = PromptGraphs(model, kv, lora, *limits, last_tokens)
    graphs.capture()
    return graphs


def _free_bytes(
    config: EngineConfig,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    batch_tokens: int,
) -> int:
    """What gpu_memory_fraction leaves after weights, adapters, a step's activations, graphs."""
    if device.type == "cpu":
        return CPU_KV_BYTES
    free, total = torch.cuda.mem_get_info(device)
    wide = max(4 * spec.intermediate_size, 8 * spec.hidden_size)
    logits = config.max_num_seqs * spec.vocab_size * 4 * 4
    activations = batch_tokens * wide * dtype.itemsize + logits
    # Each graph keeps its logits, and all share the activations of the largest.
    rows = 2 * sum(bucket_sizes(config.max_num_seqs)) if config.cuda_graphs else 0
    graphs = rows * spec.vocab_size * dtype.itemsize
    if config.cuda_graphs and config.prompt_graphs:
        # Activations of their largest bucket, and what attention cuts long prefixes into.
        graphs += (
            min(batch_tokens, MAX_TOKENS) * 2 * wide * dtype.itemsize + ATTENTION_SCRATCH_BYTES
        )
    return int(free - (1 - config.gpu_memory_fraction) * total - activations - graphs)
