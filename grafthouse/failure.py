"""How a command ends. The numbers are a contract with scripts; README.md lists them."""

from enum import IntEnum


class Exit(IntEnum):
    """1 is what is left: the house failed, or answered what this client does not understand."""

    FAILED = 1
    USAGE = 2
    NOT_ALLOWED = 3
    NOT_FOUND = 4
    REFUSED = 5
    UNREACHABLE = 6
    TIMED_OUT = 7


class Failure(Exception):
    """Told to the user as one line on stderr. reason: the house's code for it, if there is one."""

    def __init__(self, message: str, code: Exit = Exit.FAILED, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
