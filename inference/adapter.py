"""One adapter version as the engine's books know it. Numbers only, no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from inference.adapter_format import find_invocation
from inference.errors import EngineError, ErrorCode


class Placement(Enum):
    """What stands between an adapter and a lease. ON_HOST: a copy to the device, for which there is
    room; COPYING: the end of that copy.
    """

    READY = "ready"
    COPYING = "copying"
    ON_HOST = "on host"
    NOT_ON_HOST = "not on host"
    NO_ROOM = "no room"


@dataclass
class Adapter:
    """pages: of the device, in rank order; slot: its row in the tables.

    invocation: of an activated LoRA, the tokens from which on it applies; empty: from the start.

    on_host: host_pages hold its bytes. num_host_uses: who reads them now.
    is_expected: load() has it in hand, perhaps without a name yet. is_compiled: its bytes come
    again from a file of pages. awaits_copy: its device pages do not hold it yet; is_copying: and so
    it cannot be leased, as a copy ahead of its need is under way. is_fresh: placed for a request,
    and not leased since. last_step: in which its last lease was given back. is_quiet: no step that
    still runs can read the pages that it was given.
    """

    digest: str
    path: str
    rank: int
    num_pages: int
    num_bytes: int
    invocation: tuple[int, ...] = ()
    names: set[str] = field(default_factory=set)
    pinned: bool = False
    num_claims: int = 0
    num_leases: int = 0
    is_expected: bool = False
    is_compiled: bool = False
    is_reading: bool = False
    awaits_copy: bool = False
    is_copying: bool = False
    is_fresh: bool = False
    is_quiet: bool = False
    on_host: bool = False
    host_pages: tuple[int, ...] = ()
    num_host_uses: int = 0
    slot: int | None = None
    pages: tuple[int, ...] = ()
    last_use: int = 0
    last_step: int = 0
    # The floors of the tiers' evictions when it was last used (adapter_tiers.py).
    host_floor: float = 0.0
    device_floor: float = 0.0

    @property
    def tier(self) -> Literal["device", "host", "disk"]:
        """The nearest place where all of it is."""
        if self.slot is not None and not self.is_copying:
            return "device"
        return "host" if self.on_host else "disk"

    def start_in(self, token_ids: Sequence[int]) -> int:
        """The first position of a prompt that it applies to. Raises INVALID_REQUEST without one."""
        start = find_invocation(self.invocation, token_ids)
        if start is None:
            message = (
                "this adapter is an activated LoRA: it applies from its invocation tokens "
                f"{list(self.invocation)} on, and the prompt does not have them"
            )
            raise EngineError(ErrorCode.INVALID_REQUEST, message, "prompt")
        return start

    @property
    def is_wanted(self) -> bool:
        return bool(self.names or self.num_claims or self.is_expected)

    @property
    def is_busy(self) -> bool:
        """Its pages are being read or written: nobody else may get them."""
        return self.is_reading or self.is_copying or self.num_host_uses > 0

    @property
    def is_on_its_way(self) -> bool:
        """A request or a pin waits until its host copy has reached the device."""
        return self.slot is None and bool(self.num_claims or self.pinned)
