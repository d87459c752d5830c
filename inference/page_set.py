"""The free page numbers of a pool, as runs: what is taken lies side by side where it can."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise


class PageSet:
    """Numbers 0 to num_pages - 1, all free at first. Costs by the number of runs, not of pages."""

    def __init__(self, num_pages: int) -> None:
        self.num_free = num_pages
        # (first, end), ascending, none touching the next.
        self._runs = [(0, num_pages)] if num_pages else []

    def take(self, num_pages: int) -> tuple[int, ...]:
        """From the smallest run that holds them, else from the largest ones. Only while free."""
        assert num_pages <= self.num_free, "taking more pages than are free"
        taken: list[int] = []
        while len(taken) < num_pages:
            index = self._best_run(num_pages - len(taken))
            first, end = self._runs[index]
            stop = min(end, first + num_pages - len(taken))
            taken += range(first, stop)
            self._runs[index : index + 1] = [(stop, end)] if stop < end else []
        self.num_free -= num_pages
        return tuple(taken)

    def give_back(self, pages: Sequence[int]) -> None:
        for first, end in runs_of(sorted(pages)):
            index = bisect_left(self._runs, (first, end))
            if index < len(self._runs) and self._runs[index][0] == end:
                end = self._runs.pop(index)[1]
            if index and self._runs[index - 1][1] == first:
                index -= 1
                first = self._runs.pop(index)[0]
            self._runs.insert(index, (first, end))
        self.num_free += len(pages)

    def check_integrity(self, taken: Sequence[int], num_pages: int) -> None:
        """Raises AssertionError unless every page is free or taken, once."""
        assert self.num_free == sum(end - first for first, end in self._runs), "free pages differ"
        ends = [-1, *(bound for run in self._runs for bound in run)]
        assert all(a < b for a, b in pairwise(ends)), "runs touch or overlap"
        assert len(taken) == len(set(taken)) == num_pages - self.num_free, "a page is lost"
        for page in taken:
            index = bisect_left(self._runs, (page + 1,)) - 1
            is_free = index >= 0 and page < self._runs[index][1]
            assert 0 <= page < num_pages and not is_free, "a page is owned and free"

    def _best_run(self, num_pages: int) -> int:
        sizes = [end - first for first, end in self._runs]
        fitting = [size for size in sizes if size >= num_pages]
        return sizes.index(min(fitting) if fitting else max(sizes))


def runs_of(pages: Sequence[int]) -> list[tuple[int, int]]:
    """(first, end) of each stretch of numbers that follow one another in pages."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and runs[-1][1] == page:
            runs[-1] = (runs[-1][0], page + 1)
        else:
            runs.append((page, page + 1))
    return runs
