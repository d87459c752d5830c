"""Password guessing is slowed down: per address and login, per address, and per login from
everywhere.

Only failures count. The counters expire by themselves; without the store nobody signs in (503).
"""

import hashlib
from collections.abc import Iterator

from django.contrib.auth import authenticate
from django.http import HttpRequest
from redis.exceptions import RedisError

from tenants.denials import retry_headers, store_unavailable
from tenants.errors import ApiError
from tenants.models import User
from tenants.store import store

WINDOW_S = 300
MAX_FAILURES = {"pair": 10, "address": 50, "login": 100}


def check_password(request: HttpRequest, login: str, password: str) -> User:
    """The one way in, of the API and of the operator's pages.

    Raises ApiError 401, the same for an unknown login, a wrong password and a closed account; 429
    after too many failures, 503 without the store.
    """
    address = request.META.get("REMOTE_ADDR", "")
    require_attempts_left(login, address)
    user = authenticate(request, username=login, password=password)
    if not isinstance(user, User):
        note_failure(login, address)
        raise ApiError("invalid_login", 401, "The login or the password is wrong.")
    return user


def counters(login: str, address: str) -> Iterator[tuple[str, int]]:
    for kind, value in (("pair", f"{address} {login}"), ("address", address), ("login", login)):
        # Hashed: what people type into a login field is at times their password.
        name = hashlib.sha256(value.lower().encode("utf-8", "replace")).hexdigest()
        yield f"guessing:{kind}:{name}", MAX_FAILURES[kind]


def require_attempts_left(login: str, address: str) -> None:
    """Raises ApiError 429 after too many failures, 503 without the store."""
    try:
        for key, limit in counters(login, address):
            if int(store().get(key) or 0) >= limit:
                raise too_many(max(1, store().ttl(key)))
    except (RedisError, OSError) as error:
        raise store_unavailable() from error


def note_failure(login: str, address: str) -> None:
    """Raises ApiError 503 without the store."""
    try:
        pipeline = store().pipeline()
        for key, _ in counters(login, address):
            pipeline.incr(key)
            pipeline.expire(key, WINDOW_S, nx=True)
        pipeline.execute()
    except (RedisError, OSError) as error:
        raise store_unavailable() from error


def too_many(wait_s: int) -> ApiError:
    return ApiError(
        "rate_limit_exceeded",
        429,
        f"Too many failed attempts to sign in. Try again in {wait_s} s.",
        headers=retry_headers(wait_s * 1000),
    )
