"""What a step's plan, and all that is laid out by it, is sized by: shapes, never contents."""

from dataclasses import dataclass
from functools import cached_property

from kernels.contract import expect
from kernels.lora.table import LIST_MARGIN, LIST_ROWS, tokens_per_tile

# Rank rows that one step of the tensor cores takes: a sum's terms are grouped by them.
MMA_ROWS = 16
# The owner of a page that only fills up a list.
NOBODY = 2**16 - 1


@dataclass(frozen=True)
class PlanSizes:
    """T, S, pages that a slot's table has room for, PR, NP: of one batch and its pool.

    What follows from them is computed once: every launch of a step asks for it.
    """

    num_tokens: int
    num_slots: int
    max_pages: int
    rows_per_page: int
    pool_pages: int

    def __post_init__(self) -> None:
        rows = self.rows_per_page
        expect(self.num_slots < NOBODY, "adapter slots", f"fewer than {NOBODY}", self.num_slots)
        expect(self.max_pages <= 2**8, "pages of a slot", "at most 256", self.max_pages)
        is_power = 0 < rows < 2**8 and rows & (rows - 1) == 0
        expect(is_power, "rows of a page", "a power of two, at most 128", rows)

    @cached_property
    def tokens_per_tile(self) -> int:
        return tokens_per_tile(self.num_tokens)

    @cached_property
    def block_tokens(self) -> int:
        """Tokens of a program's block: a tile, filled up to the least that tensor cores take."""
        return max(16, self.tokens_per_tile)

    @cached_property
    def num_tiles(self) -> int:
        return -(-self.num_tokens // self.tokens_per_tile)

    @cached_property
    def align(self) -> int:
        """Pages to whose multiple a slot's list is filled up: its rows to one of MMA_ROWS."""
        return max(1, MMA_ROWS // self.rows_per_page)

    @cached_property
    def capacity(self) -> int:
        """Pages of a tile's list: those of as many slots as it may have."""
        pages = -(-self.max_pages // self.align) * self.align
        return max(1, min(self.tokens_per_tile, self.num_slots) * pages)

    @cached_property
    def max_rows(self) -> int:
        """Rows of a tile's list of shrunk tokens, and behind its end what a reader may reach."""
        return -(-self.capacity * self.rows_per_page // LIST_ROWS) * LIST_ROWS + LIST_MARGIN
