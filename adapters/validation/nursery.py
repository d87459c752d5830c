"""The process that children are forked from: Python, numpy and the checks are loaded once.

It reads no client's file and no task. A message on its channel (stdin) brings five descriptors: the
child's stdin, stdout, stderr and progress, and a line on which the child's exit code is told at its
end. A line that is closed at its other end means that nobody waits any more: the child is killed.
"""

import contextlib
import os
import selectors
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import NoReturn

NUM_DESCRIPTORS = 5
CHANNEL_FD = 0


@dataclass(frozen=True)
class Born:
    process_id: int
    ended: int
    line: socket.socket


def serve() -> None:
    """Until the other end of the channel is closed; then no child is left either."""
    # Here, so that no child has to: it is nearly all that a check costs.
    import adapters.validation.check
    import adapters.validation.template  # noqa: F401

    channel = socket.socket(fileno=CHANNEL_FD)
    waiting = selectors.DefaultSelector()
    waiting.register(channel, selectors.EVENT_READ)
    while True:
        # One at a time: what the next ones say may be over by then.
        key = waiting.select()[0][0]
        if key.fileobj is channel:
            if not _bear(channel, waiting):
                return _end_all(waiting)
        elif key.fileobj == key.data.ended:
            _tell_end(key.data, waiting)
        else:
            _kill(key.data, waiting)


def _bear(channel: socket.socket, waiting: selectors.BaseSelector) -> bool:
    """One message, one child; False when there are no more messages."""
    message, descriptors, _, _ = socket.recv_fds(channel, 1, NUM_DESCRIPTORS)
    if not message:
        return False
    *files, line_fd = descriptors
    process_id = os.fork()
    if process_id == 0:
        _live(files)
    for descriptor in files:
        os.close(descriptor)
    born = Born(process_id, os.pidfd_open(process_id), socket.socket(fileno=line_fd))
    waiting.register(born.ended, selectors.EVENT_READ, born)
    waiting.register(born.line, selectors.EVENT_READ, born)
    return True


def _live(files: list[int]) -> NoReturn:
    """The child: of all that is open here, it keeps its four files."""
    status = 1
    try:
        os.setsid()
        for target, descriptor in enumerate(files):
            os.dup2(descriptor, target)
        os.closerange(len(files), os.sysconf("SC_OPEN_MAX"))
        from adapters.validation.__main__ import main

        main()
        sys.stdout.flush()
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


def _tell_end(born: Born, waiting: selectors.BaseSelector) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(born.process_id, 0)[1])
    waiting.unregister(born.ended)
    os.close(born.ended)
    # Nobody may wait any more.
    with born.line as line, contextlib.suppress(OSError):
        if line in waiting.get_map():
            waiting.unregister(line)
            line.send(str(code).encode())


def _kill(born: Born, waiting: selectors.BaseSelector) -> None:
    waiting.unregister(born.line)
    # It is not waited for yet, so its number is nobody else's.
    os.kill(born.process_id, signal.SIGKILL)


def _end_all(waiting: selectors.BaseSelector) -> None:
    for born in {key.data for key in waiting.get_map().values() if key.data}:
        os.kill(born.process_id, signal.SIGKILL)


if __name__ == "__main__":
    serve()
