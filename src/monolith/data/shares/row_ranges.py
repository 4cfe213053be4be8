"""Cuts the rows of a file into ranges of whole row groups or record batches."""

from bisect import bisect_left
from itertools import accumulate, pairwise

from monolith.data.files.parquet import RowRange


def cut_rows(parts: list[int], num_ranges: int) -> list[RowRange]:
    """Return at most `num_ranges` ranges of whole parts with about equal numbers of rows.

    Args:
        parts: number of rows of each part.
        num_ranges: largest number of ranges.

    Example:
        >>> [(rows.first, rows.end) for rows in cut_rows([10, 10, 10, 10, 5], 2)]
        [(0, 20), (20, 45)]
    """
    begins = [0, *accumulate(parts)]
    total = begins[-1]
    cuts = {0, total}
    for number in range(1, num_ranges):
        above = bisect_left(begins, total * number / num_ranges)
        goal = total * number / num_ranges
        cuts.add(min(begins[max(0, above - 1) : above + 1], key=lambda row: abs(row - goal)))
    return [RowRange(first, end, _part_at(begins, first)) for first, end in pairwise(sorted(cuts))]


def _part_at(begins: list[int], row: int) -> int:
    """Return the number of the first part that begins with a row; parts before it end there."""
    return bisect_left(begins, row)
