"""`python -m tests.tenants.quota_hammer URL TENANT KEY HOLD_S`: a process that asks one limit all
the time.

Every admission is a line of standard output, "+ <ms> <name>", and every end one, "- <ms> <name>";
times are of the clock that all processes of the machine share. It says "- " before it settles and
"+ " after it was admitted: what is counted between is really running.
"""

import asyncio
import random
import sys
import time

import django

django.setup()

from tenants.errors import ApiError  # noqa: E402
from tenants.limits import Limits  # noqa: E402
from tenants.quota import Quota  # noqa: E402
from tenants.recount import PeriodLedger  # noqa: E402
from tests.tenants.test_quota import caller  # noqa: E402

NUM_TASKS = 8
RPM, CONCURRENCY = 300, 6
# The first key's limit comes free all the time, the second one's does not.
LIMITS = {1: Limits(max_concurrency=CONCURRENCY), 2: Limits(requests_per_minute=RPM)}


async def nothing_spent(tenant_id: int, family_id: int | None, period: str) -> PeriodLedger:
    return PeriodLedger(0, 0, ())


def say(sign: str, name: str) -> None:
    sys.stdout.write(f"{sign} {time.monotonic_ns() // 1_000_000} {name}\n")
    sys.stdout.flush()


async def ask(quota: Quota, tenant_id: int, family_id: int, name: str) -> None:
    who = caller(tenant_id, family_id, LIMITS[family_id], tokens_per_day=10**9)
    try:
        held = await quota.reserve(who, name, 10, 0)
    except ApiError as error:
        assert error.status == 429, error
        await asyncio.sleep(0.005)
        return
    say("+", name)
    await asyncio.sleep(random.random() * 0.04)
    say("-", name)
    await quota.settle(held, 7, 0)


async def main(url: str, tenant_id: int, family_id: int, hold_s: float) -> None:
    quota = Quota(ledger=nothing_spent, url=url, hold_s=hold_s)

    async def hammer(number: int) -> None:
        count = 0
        while True:
            count += 1
            await ask(quota, tenant_id, family_id, f"{time.monotonic_ns()}-{number}-{count}")

    await asyncio.gather(*(hammer(number) for number in range(NUM_TASKS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
