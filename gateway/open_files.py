"""How many files a web process may have open: a client is one, and its replica another."""

import fcntl
import logging
import os
import resource

from django.conf import settings

log = logging.getLogger(__name__)


def allow_many_files() -> None:
    """As many as the system lets this process have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    wanted = settings.MAX_CONNECTIONS + settings.MAX_STREAMS
    make_room_for_files(wanted if limit == resource.RLIM_INFINITY else min(wanted, limit))
    if limit != resource.RLIM_INFINITY and limit < wanted:
        log.warning("the limit of open files is %d, below what %d connections need", limit, wanted)


def make_room_for_files(number: int) -> None:
    """Now: Linux doubles a process's table of files when it is full, and where there are threads
    everybody in it waits for that, 10 to 30 ms.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    # The lowest that is free from there on: nobody's.
    os.close(fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, number - 1))
    os.close(null)
