"""/v1/usage: the tenant's own, a bucket a day, in the shape of OpenAI's usage of completions.

Days are UTC; the first and the last may be cut by the period. Rows count by their admission.
"""

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

from django.conf import settings

from gateway.openai.schema import bad_request
from tenants.billing.periods import Period
from tenants.billing.summary import Totals, totals_by_day, totals_by_day_and_adapter
from tenants.scope import tenant_scope

# One at a time: sums of many rows keep no look-up of a key waiting.
READER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="usage")
DAY = timedelta(days=1)
NUM_DAYS, MAX_NUM_DAYS = 7, 31
MAX_TIME = 2**32
FIELDS = {"start_time", "end_time", "bucket_width", "group_by", "limit", "page"}
# What OpenAI can group by and we do not.
NOT_GROUPED = ("project_id", "user_id", "api_key_id", "batch", "service_tier")


@dataclass(frozen=True)
class UsageAsk:
    """page: the days of this answer, of a period that lasts until end."""

    page: Period
    end: datetime
    is_by_model: bool


def parse_usage(query: bytes, now: datetime) -> UsageAsk:
    """Raises ApiError 400 naming the parameter."""
    fields = read_fields(query)
    given = dict(fields)
    check_choice(given.get("bucket_width", "1d"), "bucket_width", "1d")
    groups = [value for name, value in fields if name == "group_by"]
    for group in groups:
        check_choice(group, "group_by", "model")
    start = moment(given, "start_time", midnight_of(now).replace(day=1))
    end = moment(given, "end_time", midnight_of(now) + DAY)
    first = moment(given, "page", start)
    if not start <= first < end:
        raise bad_request("end_time: expected a time after start_time and page.", "end_time")
    num_days = number(given, "limit", NUM_DAYS, 1, MAX_NUM_DAYS)
    last = min(end, midnight_of(first) + num_days * DAY)
    return UsageAsk(Period(first, last), end, bool(groups))


def read_fields(query: bytes) -> list[tuple[str, str]]:
    """Arrays come as `group_by` or `group_by[]`, once for each value."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    fields = [(name.removesuffix("[]"), value) for name, value in pairs]
    for name, _ in fields:
        if name not in FIELDS:
            message = f"Unrecognized request argument supplied: {name[:100]}"
            raise bad_request(message, name[:100], "unsupported_parameter")
    return fields


def check_choice(value: str, name: str, only: str) -> None:
    if value != only:
        message = f"{name}: expected {only!r}, got {value[:50]!r}."
        raise bad_request(message, name, "unsupported_parameter")


def number(given: dict[str, str], name: str, default: int, lowest: int, highest: int) -> int:
    value = given.get(name)
    if value is None:
        return default
    is_number = value.isascii() and value.isdecimal() and len(value) <= len(str(highest))
    if not is_number or not lowest <= int(value) <= highest:
        raise bad_request(f"{name}: expected an integer from {lowest} to {highest}.", name)
    return int(value)


def moment(given: dict[str, str], name: str, default: datetime) -> datetime:
    """Of Unix seconds."""
    seconds = number(given, name, int(default.timestamp()), 0, MAX_TIME)
    return datetime.fromtimestamp(seconds, UTC)


def midnight_of(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def usage_page(tenant_id: int, ask: UsageAsk) -> dict[str, Any]:
    has_more = ask.page.end < ask.end
    return {
        "object": "page",
        "data": buckets(ask.page, results_by_day(tenant_id, ask)),
        "has_more": has_more,
        "next_page": str(int(ask.page.end.timestamp())) if has_more else None,
    }


def results_by_day(tenant_id: int, ask: UsageAsk) -> dict[date, list[dict[str, Any]]]:
    found = defaultdict(list)
    with tenant_scope(tenant_id):
        if ask.is_by_model:
            for row in totals_by_day_and_adapter(ask.page):
                name = row["adapter"] or settings.BASE_MODEL_NAME
                found[row["day"]].append(result(row, name))
        else:
            for day in totals_by_day(ask.page):
                found[day["day"]].append(result(day, None))
    return found


def buckets(page: Period, results: dict[date, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One for each day, those without a request too."""
    found, start = [], page.start
    while start < page.end:
        end = min(page.end, midnight_of(start) + DAY)
        times = {"start_time": int(start.timestamp()), "end_time": int(end.timestamp())}
        found.append({"object": "bucket", **times, "results": results.get(start.date(), [])})
        start = end
    return found


def result(sums: Totals, model: str | None) -> dict[str, Any]:
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": sums["prompt_tokens"],
        "input_cached_tokens": sums["cached_tokens"],
        "output_tokens": sums["completion_tokens"],
        "num_model_requests": sums["num_requests"],
        "model": model,
        **dict.fromkeys(NOT_GROUPED),
    }
