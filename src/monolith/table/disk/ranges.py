"""Runs of partitions: [(first, last), ...], with both ends, ascending and not adjacent."""

from collections.abc import Iterable, Sequence

Run = tuple[int, int]


def runs_of(partitions: Iterable[int]) -> list[Run]:
    """Return the runs of ascending distinct partitions.

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


def pieces(runs: Sequence[Run], num_pieces: int) -> list[tuple[Run, ...]]:
    """Divide the runs, in their order, into about `num_pieces` parts of similar size.

    Example:
        >>> pieces([(0, 4095)], 2)
        [((0, 2047),), ((2048, 4095),)]
        >>> pieces([(0, 0), (4, 6)], 2)
        [((0, 0), (4, 4)), ((5, 6),)]
    """
    if num_pieces <= 1 and runs:
        return [tuple(runs)]
    numbers = partitions_of_runs(runs)
    length = max(1, -(-len(numbers) // max(1, num_pieces)))
    starts = range(0, len(numbers), length)
    return [tuple(runs_of(numbers[start : start + length])) for start in starts]


def join_runs(runs: Iterable[Run]) -> list[Run] | None:
    """Join runs of any order; return None if two of them share a partition.

    Example:
        >>> join_runs([(7, 9), (0, 2), (3, 5)]), join_runs([(0, 2), (2, 3)])
        ([(0, 5), (7, 9)], None)
    """
    result: list[Run] = []
    for first, last in sorted(runs):
        if result and first <= result[-1][1]:
            return None
        if result and first == result[-1][1] + 1:
            result[-1] = (result[-1][0], last)
        else:
            result.append((first, last))
    return result


def common_runs(runs: Sequence[Run], others: Sequence[Run]) -> list[Run]:
    """Return the runs of the partitions that both have.

    Example:
        >>> common_runs([(0, 4), (7, 9)], [(3, 8)])
        [(3, 4), (7, 8)]
    """
    common = [(max(first, start), min(last, end)) for first, last in runs for start, end in others]
    return sorted((first, last) for first, last in common if first <= last)


def partitions_of_runs(runs: Sequence[Run]) -> list[int]:
    """Return the partitions of the runs.

    Example:
        >>> partitions_of_runs([(0, 2), (7, 7)])
        [0, 1, 2, 7]
    """
    return [number for first, last in runs for number in range(first, last + 1)]


def text_of(runs: Sequence[Run]) -> str:
    """Return the runs as text, for messages and metadata.

    Example:
        >>> text_of([(0, 2), (7, 7)])
        '0-2,7'
    """
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
