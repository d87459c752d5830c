"""The adapters' memory of an engine: pages of the device, of the host and of a folder."""

from pathlib import Path
from threading import Condition

from inference.adapter_copies import AdapterCopies
from inference.adapter_loader import AdapterLoader, layout_key
from inference.adapter_pool import AdapterPool
from inference.adapter_store import AdapterStore
from inference.config import EngineConfig
from inference.host_pages import HostPages, num_host_pages
from inference.lora import LoraPool, num_pages_for
from inference.model_spec import ModelSpec
from inference.page_folder import PageFolder


def adapter_store(
    config: EngineConfig, spec: ModelSpec, lora: LoraPool, lock: Condition
) -> AdapterStore:
    """lora: the device's pages; lock: the engine's. Raises EngineError when the folder for compiled
    adapters is unusable.
    """
    layout, dtype = lora.layout, lora.pages.dtype
    is_cuda = lora.pages.device.type == "cuda"
    page_bytes = layout.page_elements * dtype.itemsize
    num_pages = num_host_pages(
        config.host_adapter_bytes, page_bytes, num_pages_for(config.max_lora_rank)
    )
    # On the CPU a copy is over at once: nothing is gained by starting it ahead.
    pool = AdapterPool(
        lora.pages.shape[0], config.max_loras_per_batch, num_pages, copies_ahead=is_cuda
    )
    folder = _compiled(config, layout_key(layout, dtype), page_bytes)
    loader = AdapterLoader(spec, layout, config.max_lora_rank, dtype, folder)
    host = HostPages(num_pages, layout.page_elements, dtype, pin_memory=is_cuda)
    return AdapterStore(pool, loader, host, AdapterCopies(lora), lock)


def _compiled(config: EngineConfig, key: str, page_bytes: int) -> PageFolder | None:
    folder = config.adapter_cache_dir
    if folder is None:
        return None
    return PageFolder(Path(folder), key, page_bytes, config.adapter_cache_bytes)
