"""Periods are half-open [start, end), in UTC: the days of a month add up to the month exactly."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tenants.errors import ApiError

MONTH_FORMAT, DAY_FORMAT = "%Y-%m", "%Y-%m-%d"
# A day's name begins with its month's.
MONTH_CHARS = len("2026-02")


@dataclass(frozen=True)
class Period:
    start: datetime
    end: datetime

    @classmethod
    def of_month(cls, month: str) -> "Period":
        """month: "2026-02"."""
        start = datetime.strptime(month, MONTH_FORMAT).replace(tzinfo=UTC)
        return cls(start, (start + timedelta(days=32)).replace(day=1))

    @classmethod
    def named(cls, name: str) -> "Period":
        """A month, "2026-02", or a day of one, "2026-02-28"."""
        if len(name) == MONTH_CHARS:
            return cls.of_month(name)
        start = datetime.strptime(name, DAY_FORMAT).replace(tzinfo=UTC)
        return cls(start, start + timedelta(days=1))


def month_of(at: datetime) -> str:
    return at.astimezone(UTC).strftime(MONTH_FORMAT)


def day_of(at: datetime) -> str:
    return at.astimezone(UTC).strftime(DAY_FORMAT)


def parse_period(first: str | None, last: str | None, now: datetime) -> Period:
    """From the query's `from` and `to`: dates or moments of ISO 8601, by default UTC.

    `to` is not included. Without `from`: the first of this month; without `to`: now's next
    midnight. Raises ApiError 400.
    """
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    start = parse_moment(first, "from") if first else midnight.replace(day=1)
    end = parse_moment(last, "to") if last else midnight + timedelta(days=1)
    if start >= end:
        raise bad_period("to", f"'from' ({start.isoformat()}) must lie before it.")
    return Period(start, end)


def parse_moment(text: str, name: str) -> datetime:
    try:
        # A date alone is its midnight.
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise bad_period(name, f"{text!r} is neither a date nor a moment of ISO 8601.") from error
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def bad_period(name: str, reason: str) -> ApiError:
    detail = {"field": name, "code": "invalid", "message": reason}
    return ApiError("invalid_request", 400, f"{name}: {reason}", param=name, details=[detail])
