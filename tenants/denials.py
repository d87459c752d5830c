"""What a client is told when a limit refuses it.

Status, headers, and a message that names the limit.
"""

import math
from dataclasses import dataclass
from decimal import Decimal

from tenants.auth import Principal
from tenants.billing.periods import Period
from tenants.errors import ApiError
from tenants.limits import Limits
from tenants.money import PICO_DIGITS, plain

RETRY_AFTER_STORE_S = 2
NEVER = {"x-should-retry": "false"}


@dataclass(frozen=True)
class Reply:
    """What quota.lua answers to "reserve". status: "ok", "rebuild", or the limit that refuses.

    used and wait_ms belong to that limit; num_requests, num_tokens and reset_ms to the last minute.
    """

    status: str
    used: int
    wait_ms: int
    generation: str
    num_requests: int
    num_tokens: int
    reset_ms: int

    @classmethod
    def parse(cls, raw: list[str]) -> "Reply":
        _, status, used, wait_ms, generation, *window = raw
        return cls(status, int(used), int(wait_ms), generation, *(int(number) for number in window))


def rate_headers(limits: Limits, reply: Reply) -> dict[str, str]:
    """x-ratelimit-*.

    For each limit that is set, its size, what is left, and when all of it is back.
    """
    headers = {}
    for name, limit, used, reset_ms in (
        ("requests", limits.requests_per_minute, reply.num_requests, reply.reset_ms),
        ("tokens", limits.tokens_per_minute, reply.num_tokens, reply.reset_ms),
    ):
        if limit is not None:
            headers[f"x-ratelimit-limit-{name}"] = str(limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(max(0, limit - used))
            headers[f"x-ratelimit-reset-{name}"] = duration(reset_ms)
    return headers


def duration(ms: int) -> str:
    """As OpenAI writes it: "12ms", "7.66s", "1m0s"."""
    if ms < 1000:
        return f"{max(ms, 0)}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    seconds = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{seconds}" if minutes else seconds


def retry_headers(wait_ms: int) -> dict[str, str]:
    return {"retry-after": str(math.ceil(wait_ms / 1000)), "retry-after-ms": str(wait_ms)}


def denial(
    caller: Principal, reply: Reply, num_tokens: int, cost_nanos: int, month: str
) -> ApiError:
    """The 429 for a reply that is not "ok"."""
    headers = rate_headers(caller.limits, reply)
    who = f"Tenant '{caller.tenant_slug}'"
    if reply.status == "budget":
        message = f"{who}: {budget_message(caller.limits, reply, cost_nanos, month)}"
        code = "insufficient_quota"
        return ApiError(code, 429, message, type=code, headers=headers | NEVER)
    if reply.status == "too_large":
        limit = caller.limits.tokens_per_minute
        message = (
            f"{who}: the request may need {num_tokens} tokens, prompt and completion together, and "
            f"the limit is {limit} tokens per minute: it can never run. Shorten it or lower "
            "max_tokens."
        )
        return rate_limited("tokens", message, headers | NEVER)
    kind = "tokens" if reply.status == "tokens" else "requests"
    message = f"{who}: {rate_message(caller.limits, reply, num_tokens)}"
    return rate_limited(kind, message, headers | retry_headers(reply.wait_ms))


def rate_limited(kind: str, message: str, headers: dict[str, str]) -> ApiError:
    return ApiError("rate_limit_exceeded", 429, message, type=kind, headers=headers)


def rate_message(limits: Limits, reply: Reply, num_tokens: int) -> str:
    again = f"Try again in {duration(reply.wait_ms)}."
    match reply.status:
        case "requests":
            limit, unit = limits.requests_per_minute, "requests per minute"
            return f"limit {limit} {unit} reached, used {reply.used} in the last 60 s. {again}"
        case "tokens":
            limit, unit = limits.tokens_per_minute, "tokens per minute"
            wanted = f"used {reply.used} in the last 60 s, requested {num_tokens}"
            return f"limit {limit} {unit} reached, {wanted}. {again}"
        case "concurrency":
            limit = limits.max_concurrency
            return f"limit {limit} concurrent requests reached, {reply.used} are running. {again}"
        case _:
            return f"the rest of this month's budget is held by requests that are running. {again}"


def budget_message(limits: Limits, reply: Reply, cost_nanos: int, month: str) -> str:
    budget, used = amount(limits.monthly_budget_nanos or 0), amount(reply.used)
    reset = Period.of_month(month).end.strftime("%Y-%m-%dT%H:%M:%SZ")
    spent = f"the monthly budget is {budget}, used {used}"
    return f"{spent}, this request may cost {amount(cost_nanos)}. The budget is renewed at {reset}."


def amount(nanos: int) -> str:
    return plain(Decimal(nanos).scaleb(3 - PICO_DIGITS))


def store_unavailable() -> ApiError:
    """Limits fail closed: without the counters nobody is admitted."""
    return ApiError(
        "quota_unavailable",
        503,
        "Limits cannot be checked at the moment, so no request is admitted. Try again shortly.",
        type="server_error",
        headers=retry_headers(RETRY_AFTER_STORE_S * 1000),
    )
