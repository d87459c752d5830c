"""Runs the scheduler as the engine does, without a model: every sampled token is token 1."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import count

from inference.adapter import Adapter
from inference.adapter_pool import AdapterPool
from inference.kv_cache import KvCache
from inference.plan import Limits, Plan
from inference.request import GenerateRequest, SamplingParams
from inference.scheduler import Scheduler
from inference.sequence import Sequence
from inference.waiting import OUTPUT_UNITS, PROMPT_UNITS

BLOCK_SIZE = 4


class Machine:
    """served: by tenant, units of first-time service (what is computed again is not counted)."""

    def __init__(
        self,
        max_num_seqs: int = 4,
        max_batch_tokens: int = 16,
        num_blocks: int = 1000,
        max_active: int = 4,
        num_pages: int = 16,
    ) -> None:
        self.pool = AdapterPool(num_pages, max_active, 1 << 30)
        cache = KvCache(num_blocks, BLOCK_SIZE, prefix_cache=False)
        self.scheduler = Scheduler(Limits(max_num_seqs, max_batch_tokens), cache, self.pool)
        self.served: Counter[str] = Counter()
        self.served_by_adapter: Counter[str | None] = Counter()
        self.admitted: list[Sequence] = []
        self.ended: list[Sequence] = []
        self.on_admission: Callable[[Sequence], None] = lambda _: None
        self._high: Counter[str] = Counter()
        self._numbers = count()

    def adapter(self, name: str, num_pages: int = 1, on_host: bool = True) -> str:
        self.pool.register(name, Adapter(name, "", num_pages * 8, num_pages, 1))
        if on_host:
            self.arrive(name)
        return name

    def arrive(self, name: str) -> None:
        """From disk to the host."""
        adapter = self.pool.find(name)
        assert adapter is not None and self.pool.start_read(adapter)
        self.pool.end_read(adapter, arrived=True)

    def submit(
        self,
        tenant: str,
        prompt: int = 4,
        output: int = 4,
        digest: str | None = None,
        weight: float = 1.0,
    ) -> Sequence:
        """prompt, output: tokens."""
        params = SamplingParams(output, temperature=0.0, ignore_eos=True)
        name = f"r{next(self._numbers)}"
        request = GenerateRequest(name, (0,) * prompt, params, digest, tenant=tenant, weight=weight)
        sequence = Sequence(request, lambda _: None, random.Random(0), 0.0)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> Plan:
        self.scheduler.waiting_for_host()
        known = {id(s) for s in self.scheduler if s.is_admitted}
        plan = self.scheduler.schedule()
        for adapter in plan.copies:
            self.pool.copied(adapter)
        for work in plan.work:
            if id(work.sequence) not in known:
                self.admitted.append(work.sequence)
                self.on_admission(work.sequence)
        for work in plan.work:
            self._count(work.sequence, work.end, work.samples)
            self.scheduler.launched(work, 0 if work.samples else None)
            self.scheduler.computed(work)
            if work.samples:
                work.sequence.take(1)
                if work.sequence.finish_reason(()):
                    self.scheduler.finish(work.sequence)
                    self.ended.append(work.sequence)
        self.scheduler.check_integrity()
        return plan

    def drain(self, max_steps: int = 20_000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.num_waiting and not self.scheduler.num_running:
                return
            assert self.step().work, "idle while there is work"
        raise AssertionError("the scheduler does not come to rest")

    def _count(self, sequence: Sequence, num_computed: int, samples: bool) -> None:
        num_prompt = len(sequence.request.token_ids)
        fresh = min(num_computed, num_prompt) - self._high[sequence.request_id]
        units = max(fresh, 0) * PROMPT_UNITS + samples * OUTPUT_UNITS
        self._high[sequence.request_id] += max(fresh, 0)
        self.served[sequence.request.tenant] += units
        self.served_by_adapter[sequence.digest] += units


def cost(sequence: Sequence) -> int:
    """The units of a whole request."""
    request = sequence.request
    return len(request.token_ids) * PROMPT_UNITS + request.sampling.max_tokens * OUTPUT_UNITS
