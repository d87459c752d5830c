"""Where one sequence is in its grammar, and which tokens may come next."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from inference.errors import EngineError, ErrorCode
from inference.request import Constraint
from inference.workers import Workers

if TYPE_CHECKING:
    import xgrammar

logger = logging.getLogger(__name__)

# Of one mask's making. An honest one takes a thousandth of it; an ambiguous grammar's take longer
# with every token.
MAX_MASK_S = 2.0


class Matcher:
    """mask [ceil(V / 32)] int32: a bit a token that may come; usable: those that ever may.

    advance() is called once for each token of the sequence, whatever is computed again; the mask
    after it is made by another thread.
    """

    def __init__(
        self,
        matcher: "xgrammar.GrammarMatcher",
        usable: torch.Tensor,
        workers: Workers,
        constraint: Constraint,
        on_first: Callable[[], None],
    ) -> None:
        self.mask = torch.zeros_like(usable)
        self._usable = usable
        self._matcher = matcher
        self._workers = workers
        self._constraint = constraint
        self._on_first = on_first
        self._error: EngineError | None = None
        self._is_filled = threading.Event()
        self._started_s: float | None = None
        self._ask(None)

    def advance(self, token_id: int) -> None:
        """The token was sampled from the mask."""
        self._is_filled.clear()
        self._ask(token_id)

    def wait(self, timeout_s: float) -> bool:
        """Whether the mask is there, or an error in its place, within that time."""
        return self._is_filled.wait(timeout_s) or self._is_overdue

    @property
    def error(self) -> EngineError | None:
        """Why there is no next token; after wait()."""
        if self._error is None and not self._is_filled.is_set() and self._is_overdue:
            message = f"finding the tokens that it allows takes longer than {MAX_MASK_S:.0f} s"
            return refusal(self._constraint, message)
        return self._error

    @property
    def _is_overdue(self) -> bool:
        started_s = self._started_s
        return started_s is not None and time.monotonic() - started_s > MAX_MASK_S

    def _ask(self, token_id: int | None) -> None:
        self._started_s = None
        self._workers.put(lambda: self._fill(token_id))

    def _fill(self, token_id: int | None) -> None:
        self._started_s = time.monotonic()
        try:
            self._error = self._move(token_id)
        except Exception:
            logger.exception("a grammar's mask could not be made")
            self._error = EngineError(ErrorCode.INTERNAL, "the grammar's mask could not be made")
        self._is_filled.set()
        if token_id is None:
            self._on_first()

    def _move(self, token_id: int | None) -> EngineError | None:
        """Past the token, to the mask of the next; the error: there is none."""
        if token_id is not None and not self._matcher.accept_token(token_id):
            message = f"token {token_id} does not fit the grammar"
            return EngineError(ErrorCode.INTERNAL, message)
        if self._matcher.is_terminated():
            return None
        self._matcher.fill_next_token_bitmask(self.mask)
        self.mask &= self._usable
        if self.mask.any():
            return None
        reason = "no token of the vocabulary fits it after what was generated"
        return refusal(self._constraint, reason)


def refusal(constraint: Constraint, reason: str) -> EngineError:
    message = f"'{constraint.param}' cannot be followed: {reason}."
    return EngineError(ErrorCode.INVALID_REQUEST, message, constraint.param)
