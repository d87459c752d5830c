"""What the request bodies of one process take in memory together: bounded, so that many large ones
at once are refused while they come, and small ones go on.
"""

from django.conf import settings

from gateway import metrics
from gateway.openai.errors import unavailable

# A body up to here finds room where a larger one does not: nearly all requests are this small.
SMALL_BODY_BYTES = 64 * 2**10
# Of the whole, what larger ones may fill.
LARGE_SHARE = 0.75


class Bodies:
    """num_bytes: of all bodies that are held, as they came. What is read of them takes more: text
    little, arrays of small numbers some twenty times as much.
    """

    def __init__(self) -> None:
        self.num_bytes = 0

    def held(self) -> "HeldBody":
        return HeldBody(self)


class HeldBody:
    """One body's part of it, from its first byte until the block is left."""

    __slots__ = ("_bodies", "num_bytes")

    def __init__(self, bodies: Bodies) -> None:
        self.num_bytes = 0
        self._bodies = bodies

    def __enter__(self) -> "HeldBody":
        return self

    def __exit__(self, *error: object) -> None:
        self._bodies.num_bytes -= self.num_bytes

    def grow_to(self, num_bytes: int) -> None:
        """num_bytes: what has come so far, or was announced. Raises ApiError 503 overloaded."""
        num_more = num_bytes - self.num_bytes
        if num_more <= 0:
            return
        limit: float = settings.MAX_BODIES_BYTES
        if num_bytes > SMALL_BODY_BYTES:
            limit *= LARGE_SHARE
        if self._bodies.num_bytes + num_more > limit:
            metrics.REFUSED.labels("overloaded", "server_error").inc()
            message = "This server holds as many request bodies as it may. Try again shortly."
            raise unavailable("overloaded", message)
        self._bodies.num_bytes += num_more
        self.num_bytes = num_bytes
