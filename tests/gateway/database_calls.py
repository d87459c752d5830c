"""What the tests ask of a database process: it imports them by name."""

import os
import threading
import time

from django.db import OperationalError

from tenants.errors import ApiError

DONE: list[int] = []


def process_id() -> int:
    return os.getpid()


def note(number: int, after_s: float = 0.0) -> int:
    time.sleep(after_s)
    DONE.append(number)
    return number


def done() -> list[int]:
    return DONE


def refuse() -> None:
    raise ApiError("spent", 429, "No more.", "insufficient_quota", "n", {"retry-after": "1"}, [])


def fail() -> None:
    raise OperationalError("database is locked")


class OddError(Exception):
    """Cannot be made again from its args, as pickling does."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def fail_oddly() -> None:
    raise OddError("no", "where")


def fail_with_a_lock() -> None:
    raise ValueError(threading.Lock())


def die_with(pid_file: str) -> None:
    """Ends its process, and leaves behind how often it did."""
    with open(pid_file, "a") as file:
        file.write(f"{os.getpid()}\n")
    os._exit(9)
