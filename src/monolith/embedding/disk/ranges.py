"""Runs of partitions: [(first, last), ...], both ends inside, ascending and apart."""

from collections.abc import Iterable, Sequence

__all__ = ["Run", "pieces", "runs_of", "text_of"]

Run = tuple[int, int]


def runs_of(partitions: Iterable[int]) -> list[Run]:
    """The runs of ascending distinct partitions.

    Example:
        >>> runs_of([0, 1, 2, 7])
        [(0, 2), (7, 7)]
    """
    runs: list[Run] = []
    for number in partitions:
        if runs and runs[-1][1] + 1 == number:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def pieces(runs: Sequence[Run], num_pieces: int) -> list[Run]:
    """The runs cut into about `num_pieces` runs of about equal length.

    Example:
        >>> pieces([(0, 4095)], 2)
        [(0, 2047), (2048, 4095)]
    """
    length = max(1, -(-sum(last - first + 1 for first, last in runs) // max(1, num_pieces)))
    return [
        (start, min(start + length - 1, last))
        for first, last in runs
        for start in range(first, last + 1, length)
    ]


def text_of(runs: Sequence[Run]) -> str:
    """For messages and metadata.

    Example:
        >>> text_of([(0, 2), (7, 7)])
        '0-2,7'
    """
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
