"""One step's way: launched, its tokens drawn, taken in. At most one is on its way.

What fails ends the requests of its step, and nobody else's.
"""

import logging
import threading

from inference.adapter_store import AdapterStore
from inference.lora import PackedAdapter
from inference.model_runner import Flight, Forward, ModelRunner
from inference.plan import Plan
from inference.results import Delivery, Results
from inference.scheduler import Scheduler

logger = logging.getLogger(__name__)


class Flights:
    """For the engine's loop. lock: the engine's; it is held only while results are taken in."""

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        adapters: AdapterStore,
        results: Results,
        lock: threading.Condition,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._adapters = adapters
        self._results = results
        self._lock = lock
        self._flight: Flight | None = None

    @property
    def is_one_on_its_way(self) -> bool:
        return self._flight is not None

    def launch(
        self, plan: Plan, packed: list[PackedAdapter], deliveries: list[Delivery]
    ) -> Forward | None:
        """Its forward and its copies; packed: of plan.copies. None: no work, or it failed."""
        try:
            return self._launch(plan, packed)
        except Exception:
            logger.exception("a step failed")
            with self._lock:
                self._results.fail(plan.work, deliveries)
                for adapter in plan.copies:
                    self._adapters.give_up_copy(adapter)
            return None

    def sample(self, forward: Forward, deliveries: list[Delivery]) -> None:
        """Draws its tokens: it is on its way from then on."""
        try:
            self._flight = self._runner.sample(forward)
        except Exception:
            logger.exception("sampling failed")
            with self._lock:
                self._results.fail(forward.plan.work, deliveries)
            return
        with self._lock:
            for work, place in self._flight.launched():
                self._scheduler.launched(work, place)

    def collect(self, deliveries: list[Delivery]) -> None:
        """Takes in the step that is on its way, if one is."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        try:
            outcome = self._runner.collect(flight)
        except Exception:
            logger.exception("a step failed")
            with self._lock:
                self._results.fail(flight.works, deliveries)
            return
        with self._lock:
            self._results.take(outcome, deliveries)

    def _launch(self, plan: Plan, packed: list[PackedAdapter]) -> Forward | None:
        is_ahead = self._adapters.pool.copies_ahead
        if plan.copies:
            self._adapters.mark_launched()
        if not is_ahead:
            self._adapters.start_copies(plan.copies, packed)
        forward = self._runner.launch(plan) if plan.work else None
        if is_ahead:
            # None is for this forward: the device has work while they are queued.
            self._adapters.start_copies(plan.copies, packed)
        return forward
