"""Cores that do not sleep while a bench runs, as on servers that are tuned for latency."""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Linux: cores sleep no deeper than this many microseconds while the file is open
# (Documentation/power/pm_qos_interface.rst).
LATENCY_FILE = Path("/dev/cpu_dma_latency")


@contextmanager
def awake() -> Iterator[None]:
    """Raises OSError where there is no such file, or no right to write to it."""
    descriptor = os.open(LATENCY_FILE, os.O_WRONLY)
    try:
        os.write(descriptor, struct.pack("=i", 0))
        yield
    finally:
        os.close(descriptor)
