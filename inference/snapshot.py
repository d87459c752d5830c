"""The engine's counts as they stand. Called under its lock."""

from inference.adapter_store import AdapterStore
from inference.scheduler import Scheduler
from inference.stats import Counters, EngineStats


def engine_stats(scheduler: Scheduler, adapters: AdapterStore, counters: Counters) -> EngineStats:
    return EngineStats(
        num_waiting=scheduler.num_waiting,
        num_running=scheduler.num_running,
        num_kv_blocks=scheduler.cache.num_usable,
        num_free_kv_blocks=scheduler.cache.num_free,
        num_active_adapters=scheduler.adapters.num_active,
        num_adapter_hits=scheduler.num_adapter_hits,
        num_adapter_misses=scheduler.num_adapter_misses,
        num_adapter_loads=scheduler.adapters.num_device_loads,
        num_adapter_evictions=scheduler.adapters.num_device_evictions,
        num_prompt_tokens=scheduler.num_prompt_tokens,
        num_cached_tokens=scheduler.num_cached_tokens,
        num_preemptions=scheduler.num_preemptions,
        queue_times=dict(scheduler.queue_times.totals),
        adapter_load_times=dict(adapters.times.totals),
        adapter_evictions=adapters.evictions(),
        **counters.exported(),
    )
