"""Which replicas one request is sent to, one after the other, and what its client is told when none
is left.
"""

import time

from adapters.access import Resolved
from adapters.dialects.dialect import Ability
from gateway.openai.errors import unavailable
from gateway.openai.relay import BrokenStream, DigestMismatch
from gateway.replicas import ReplicaTable
from gateway.upstream import ReplicaBusy, ReplicaLost
from tenants.errors import ApiError

# Replicas tried for one request before its client gets any of it.
MAX_ATTEMPTS = 3
# A version that just became active may not be in the last poll's report yet.
MAX_RESIDENCY_WAIT_S = 1.0
# What a client is told to wait: about as long as a replica takes to be trusted again.
LOST_RETRY_S = 2
MISMATCH_RETRY_S = 2


class Candidates:
    """For one request. prefix: see Wish. needs_template: the version has its own chat template."""

    def __init__(
        self, replicas: ReplicaTable, resolved: Resolved, prefix: str, needs_template: bool
    ) -> None:
        self._replicas = replicas
        self._resolved = resolved
        self._name = resolved.public_name
        self._prefix = prefix
        self._needs_template = needs_template
        # What first() found; next() begins with it.
        self._first: str | None = None
        self._tried: list[str] = []
        self._failures: set[type[Exception]] = set()

    @property
    def num_tried(self) -> int:
        return len(self._tried)

    async def first(self) -> str:
        """Waits for a replica that can serve this digest; ApiError 503 when none can."""
        deadline = time.monotonic() + MAX_RESIDENCY_WAIT_S
        while not (urls := self._order()):
            if time.monotonic() > deadline:
                raise self.none_left()
            # Also when none takes work: one that lost a stream a moment ago may live.
            await self._replicas.refresh()
            if not self._replicas.is_any_taking():
                raise self.none_left()
        self._first = urls[0]
        return urls[0]

    def next(self) -> str | None:
        """The best replica not tried yet, by what is known now."""
        if len(self._tried) == MAX_ATTEMPTS:
            return None
        url, self._first = self._first, None
        if url is None:
            url = next((url for url in self._order() if url not in self._tried), None)
        if url is not None:
            self._tried.append(url)
        return url

    def failed(self, error: Exception) -> None:
        """How the last one did."""
        self._failures.add(type(error))

    def forgive(self) -> None:
        """The last one may be asked again: what it refused is changed."""
        self._tried.pop()

    def _residents(self) -> list[str]:
        return self._replicas.order(self._resolved.digest, self._prefix)

    def _order(self) -> list[str]:
        if not self._needs_template:
            return self._residents()
        # Elsewhere the base's own would be used: another prompt than was asked for.
        dialect = self._replicas.dialect
        return [url for url in self._residents() if Ability.CHAT_TEMPLATE in dialect(url).abilities]

    def none_left(self) -> ApiError:
        """Always a 503 that says when: nothing is billed, so who asks again loses nothing."""
        is_busy = ReplicaBusy in self._failures
        is_lost = not self._failures.isdisjoint((ReplicaLost, BrokenStream))
        if DigestMismatch in self._failures:
            return self._mismatch()
        # One that was lost may be back by now: that is not what ended this request.
        if not self._replicas.is_any_taking() or (is_lost and not is_busy):
            return no_replica(is_lost)
        if self._replicas.is_doubted(self._resolved.digest):
            return self._mismatch()
        if is_busy or self._resolved.digest is None:
            return unavailable("overloaded", "Every inference replica is busy. Try again shortly.")
        return self._not_there()

    def _mismatch(self) -> ApiError:
        message = (
            f"The inference replicas answered with another version than {self._name}. Nothing of "
            "it was passed on or billed, and they are not asked for it for a moment. Try again "
            "then; if it stays so, an operator must look at them."
        )
        return unavailable("version_mismatch", message, MISMATCH_RETRY_S)

    def _not_there(self) -> ApiError:
        if self._residents() and not self._order():
            message = f"{self._name} has a chat template, which no replica that holds it applies."
            return unavailable("chat_template_unavailable", message)
        message = f"{self._name} is being loaded by the inference replicas. Try again shortly."
        return unavailable("adapter_loading", message)


def no_replica(is_lost: bool) -> ApiError:
    message = "No inference replica is ready. Try again shortly."
    if is_lost:
        message = (
            "The inference replicas that were asked failed before the answer was there. Nothing "
            "is billed. Try again shortly."
        )
    return unavailable("no_replica", message, LOST_RETRY_S)
