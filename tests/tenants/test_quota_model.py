"""Any order of verbs, at any time, from any process.

The store agrees with a plain model of the rules.
"""

import asyncio
import secrets
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tenants.auth import Principal
from tenants.errors import ApiError
from tenants.limits import Limits
from tenants.quota import HOLD_S, Quota, Reservation
from tests.tenants.test_quota import START_MS, Books

MINUTE_MS = 60_000
HOLD_MS = int(HOLD_S * 1000)
RPM, TPM, MAX_HOLDS, BUDGET = 5, 1000, 3, 5000


class QuotaMachine(RuleBasedStateMachine):
    """Two processes share a store.

    The model keeps every admission with its time, tokens and cost.
    """

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.now_ms = START_MS
        self.books = Books()
        self.quotas = [Quota(ledger=self.books, clock_ms=lambda: self.now_ms) for _ in range(2)]
        self.who = Principal(
            secrets.randbelow(2**40),
            "acme",
            "key",
            Limits(RPM, TPM, MAX_HOLDS, BUDGET),
            1,
            None,
            frozenset(),
            "",
        )
        self.number = 0
        self.admitted: dict[str, tuple[int, int]] = {}
        self.open: dict[str, Reservation] = {}
        self.since: dict[str, int] = {}
        self.settled: list[Reservation] = []
        self.spent = 0

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        for quota in self.quotas:
            self.loop.run_until_complete(quota.close())
        self.loop.close()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def live(self) -> dict[str, Reservation]:
        return {
            name: held
            for name, held in self.open.items()
            if self.since[name] + HOLD_MS > self.now_ms
        }

    def window(self) -> list[int]:
        return [tokens for at, tokens in self.admitted.values() if at > self.now_ms - MINUTE_MS]

    def refusals(self, tokens: int, cost: int) -> set[str]:
        reserved = sum(held.cost_nanos for held in self.live().values())
        checks = {
            "too large": tokens > TPM,
            "requests": len(self.window()) + 1 > RPM,
            "tokens": sum(self.window()) + tokens > TPM,
            "concurrency": len(self.live()) + 1 > MAX_HOLDS,
            "budget": self.spent + reserved + cost > BUDGET or self.spent >= BUDGET,
        }
        return {name for name, refuses in checks.items() if refuses}

    @rule(tokens=st.integers(0, 1100), cost=st.integers(0, 1500), process=st.integers(0, 1))
    def reserve(self, tokens: int, cost: int, process: int) -> None:
        self.number += 1
        name = f"r{self.number}"
        expected = self.refusals(tokens, cost)
        try:
            held = self.run(self.quotas[process].reserve(self.who, name, tokens, cost))
        except ApiError as error:
            assert error.status == 429
            assert expected, error.message
            return
        assert not expected
        self.admitted[name] = (self.now_ms, tokens)
        self.open[name], self.since[name] = held, self.now_ms
        assert held.headers["x-ratelimit-remaining-requests"] == str(RPM - len(self.window()))
        assert held.headers["x-ratelimit-remaining-tokens"] == str(TPM - sum(self.window()))

    @precondition(lambda self: self.open)
    @rule(share=st.floats(0, 1), pick=st.randoms(use_true_random=False), process=st.integers(0, 1))
    def settle(self, share: float, pick: Any, process: int) -> None:
        """Also of an expired hold, and by the other process."""
        name = pick.choice(sorted(self.open))
        held = self.open.pop(name)
        tokens, cost = int(held.num_tokens * share), int(held.cost_nanos * share)
        self.run(self.quotas[process].settle(held, tokens, cost))
        self.admitted[name] = (self.admitted[name][0], tokens)
        self.spent += cost
        self.settled.append(held)

    @precondition(lambda self: self.open)
    @rule(pick=st.randoms(use_true_random=False))
    def release(self, pick: Any) -> None:
        name = pick.choice(sorted(self.open))
        held = self.open.pop(name)
        self.run(self.quotas[0].release(held))
        del self.admitted[name]
        self.settled.append(held)

    @precondition(lambda self: self.settled)
    @rule(pick=st.randoms(use_true_random=False), is_release=st.booleans())
    def settle_again(self, pick: Any, is_release: bool) -> None:
        held = pick.choice(self.settled)
        if is_release:
            self.run(self.quotas[1].release(held))
        else:
            self.run(self.quotas[1].settle(held, 999, 999))

    @rule(ms=st.one_of(st.integers(0, 2000), st.sampled_from([20_000, 59_999, 60_000, 60_001])))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def lose_the_budget(self) -> None:
        """The counter of the month is gone; the ledger has what was settled."""
        self.books.spent_nanos = self.spent
        self.books.recent_ids = [held.request_id for held in self.settled]
        key = f"quota:{{{self.who.tenant_id}}}:sums"
        self.run(self.quotas[0]._client.hdel(key, "2027-01:tokens", "2027-01:nanos"))

    @invariant()
    def never_over_a_limit(self) -> None:
        if not hasattr(self, "loop"):
            return
        assert len(self.window()) <= RPM
        assert sum(self.window()) <= TPM
        assert len(self.live()) <= MAX_HOLDS


TestQuota = QuotaMachine.TestCase
TestQuota.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
