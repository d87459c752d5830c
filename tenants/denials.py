"""What a client is told when a limit refuses it.

Status, headers, and a message that names whose limit it is, how much, what is used, and when it
has room again.
"""

import math
from dataclasses import dataclass
from typing import Any

from tenants.auth import Principal
from tenants.billing.periods import MONTH_CHARS, Period
from tenants.errors import ApiError
from tenants.money import from_nanos, plain

RETRY_AFTER_STORE_S = 2
NEVER = {"x-should-retry": "false"}
# How the limits of a day or month are called.
BUDGETS = {
    "monthly_budget_nanos": "monthly budget",
    "daily_budget_nanos": "daily budget",
    "tokens_per_month": "limit of tokens per month",
    "tokens_per_day": "limit of tokens per day",
}


@dataclass(frozen=True)
class Minute:
    """What a scope took in the last 60 s, and when all of it is back."""

    num_requests: int
    num_tokens: int
    reset_ms: int


@dataclass(frozen=True)
class Reply:
    """What counters/reserve.lua answers.

    status: "ok", "uncounted" (name then says what), or how a limit refuses: "too_large", "spent",
    "held", "full". scope 0 is the tenant, 1 the key; name, used and wait_ms belong to that limit.
    """

    status: str
    scope: int
    name: str
    used: int
    wait_ms: int
    generation: str
    minutes: tuple[Minute, ...]

    @classmethod
    def parse(cls, raw: list[Any]) -> "Reply":
        _, status, scope, name, used, wait_ms, generation, *rest = raw
        minutes = tuple(Minute(*rest[at : at + 3]) for at in range(0, len(rest), 3))
        return cls(status, scope, name, used, wait_ms, generation, minutes)


def rate_headers(caller: Principal, reply: Reply) -> dict[str, str]:
    """x-ratelimit-*.

    Of requests and of tokens in a minute, the limit with least left: its size, what is left, and
    when all of it is back.
    """
    headers = {}
    for name in ("requests", "tokens"):
        rooms = []
        for limits, minute in zip((caller.limits, caller.key_limits), reply.minutes, strict=False):
            limit = getattr(limits, f"{name}_per_minute")
            if limit is not None:
                used = getattr(minute, f"num_{name}")
                rooms.append((max(0, limit - used), limit, minute.reset_ms))
        if rooms:
            left, limit, reset_ms = min(rooms)
            headers[f"x-ratelimit-limit-{name}"] = str(limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(left)
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


def denial(caller: Principal, reply: Reply, num_tokens: int, cost_nanos: int, day: str) -> ApiError:
    """The 429 for a reply that is not "ok"."""
    headers = rate_headers(caller, reply)
    who = f"Key '{caller.key_name}'" if reply.scope else f"Tenant '{caller.tenant_slug}'"
    limit = getattr(caller.key_limits if reply.scope else caller.limits, reply.name)
    if reply.status == "spent":
        message = f"{who}: {spent_message(reply, limit, num_tokens, cost_nanos, day)}"
        code = "insufficient_quota"
        return ApiError(code, 429, message, type=code, headers=headers | NEVER)
    if reply.status == "too_large":
        message = (
            f"{who}: the request may need {num_tokens} tokens, prompt and completion together, and "
            f"the limit is {limit} tokens per minute: it can never run. Shorten it or lower "
            "max_tokens."
        )
        return rate_limited("tokens", message, headers | NEVER)
    kind = "tokens" if reply.name.startswith("tokens") else "requests"
    message = f"{who}: {full_message(reply, limit, num_tokens)}"
    return rate_limited(kind, message, headers | retry_headers(reply.wait_ms))


def rate_limited(kind: str, message: str, headers: dict[str, str]) -> ApiError:
    return ApiError("rate_limit_exceeded", 429, message, type=kind, headers=headers)


def full_message(reply: Reply, limit: int, num_tokens: int) -> str:
    again = f"Try again in {duration(reply.wait_ms)}."
    match reply.name:
        case "requests_per_minute":
            reached = f"limit {limit} requests per minute reached"
            return f"{reached}, used {reply.used} in the last 60 s. {again}"
        case "tokens_per_minute":
            wanted = f"used {reply.used} in the last 60 s, requested {num_tokens}"
            return f"limit {limit} tokens per minute reached, {wanted}. {again}"
        case "max_concurrency":
            return f"limit {limit} concurrent requests reached, {reply.used} are running. {again}"
        case _:
            rest = f"the {BUDGETS[reply.name]} is {amount(reply.name, limit)}"
            held = f"{amount(reply.name, reply.used)} are used or held by requests that are running"
            return f"{rest}, {held}. {again}"


def spent_message(reply: Reply, limit: int, num_tokens: int, cost_nanos: int, day: str) -> str:
    is_money = reply.name.endswith("_nanos")
    period = day if reply.name in ("daily_budget_nanos", "tokens_per_day") else day[:MONTH_CHARS]
    reset = Period.named(period).end.strftime("%Y-%m-%dT%H:%M:%SZ")
    wanted = f"cost {amount(reply.name, cost_nanos)}" if is_money else f"need {num_tokens}"
    spent = f"the {BUDGETS[reply.name]} is {amount(reply.name, limit)}"
    used = f"used {amount(reply.name, reply.used)}"
    return f"{spent}, {used}, this request may {wanted}. It is renewed at {reset}."


def amount(name: str, number: int) -> str:
    """Of the limit of this name: tokens, or money."""
    if name.endswith("_nanos"):
        return plain(from_nanos(number))
    return str(number)


def store_unavailable() -> ApiError:
    """Limits fail closed: without the counters nobody is admitted."""
    return ApiError(
        "quota_unavailable",
        503,
        "Limits cannot be checked at the moment, so no request is admitted. Try again shortly.",
        type="server_error",
        headers=retry_headers(RETRY_AFTER_STORE_S * 1000),
    )
