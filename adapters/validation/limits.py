"""What the validating child may use; it sets this itself before it opens a client's file."""

import resource
from dataclasses import dataclass


@dataclass(frozen=True)
class ChildLimits:
    """memory_bytes: address space, numpy's own included. max_file_bytes: of any file it writes."""

    memory_bytes: int = 2 << 30
    cpu_s: int = 120
    max_file_bytes: int = 2 << 30
    wall_s: float = 300.0


def apply_limits(limits: ChildLimits) -> None:
    """For the calling process, for good."""
    _limit(resource.RLIMIT_AS, limits.memory_bytes)
    # The soft limit's signal says why the child ended; the hard one only kills.
    _limit(resource.RLIMIT_CPU, limits.cpu_s, grace=5)
    _limit(resource.RLIMIT_FSIZE, limits.max_file_bytes)
    _limit(resource.RLIMIT_NOFILE, 64)
    _limit(resource.RLIMIT_CORE, 0)


def _limit(kind: int, value: int, grace: int = 0) -> None:
    given = resource.getrlimit(kind)[1]
    hard = value + grace if given == resource.RLIM_INFINITY else min(value + grace, given)
    resource.setrlimit(kind, (min(value, hard), hard))
