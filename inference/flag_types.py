"""What flags of `python -m inference serve` may be: a value, or a line on why not."""

import argparse
import re
from pathlib import Path

UNIT_BITS = {"": 0, "K": 10, "M": 20, "G": 30}


def positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def url(text: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+/?", text):
        raise argparse.ArgumentTypeError(f"expected http(s)://host:port, got {text!r}")
    return text.rstrip("/")


def _float_within(text: str, lowest: float, highest: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not lowest <= value <= highest:
        message = f"expected a number from {lowest:g} to {highest:g}, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return value


def fraction(text: str) -> float:
    return _float_within(text, 0.05, 1.0)


def seconds(text: str) -> float:
    return _float_within(text, 0.0, 3600.0)


def size(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15})([KMG]?)(i?B)?", text, re.ASCII | re.IGNORECASE)
    if found is None or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a size as 1073741824, 512M or 4G, got {text!r}")
    return int(found[1]) << UNIT_BITS[found[2].upper()]


def named_path(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"expected NAME=PATH, got {text!r}")
    if not Path(path).is_dir():
        raise argparse.ArgumentTypeError(f"{name}: {path} is not a folder")
    return name, path
