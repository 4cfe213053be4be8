"""`RankFolds`: the gradients of equal keys of several ranks, added up where the rows are."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from monolith.cluster.ranks.key_exchange import Keys
from monolith.ops import Ragged
from monolith.table._checks import default_threads
from monolith.table.native import empty


class RankPart(NamedTuple):
    """Keys and gradients that one rank has sent.

    Attributes:
        keys: keys of all tables, with the ends of each table.
        grads: float32, in the order of the keys.
        counts: int32, occurrences of each key; None where no table counts them.
    """

    keys: Keys
    grads: torch.Tensor
    counts: torch.Tensor | None


class OwnerSums(NamedTuple):
    """The distinct keys that this rank owns, with the sums of all ranks.

    Attributes:
        keys: a row for each table.
        grads: float32, in the order of the keys.
        counts: int32, occurrences of each key in all ranks; ones where no table counts them.
        squares: square of the norm of each table, float64 (tables,).
    """

    keys: Ragged
    grads: torch.Tensor
    counts: torch.Tensor
    squares: torch.Tensor


class RankFolds:
    """Adds up gradients of equal keys, in the order of the ranks.

    Args:
        dims: width of the rows of each table.
        num_ranks: number of ranks.
    """

    def __init__(self, dims: Sequence[int], num_ranks: int) -> None:
        import monolith._native as native

        self._dims = torch.tensor(list(dims), dtype=torch.int64, device="cpu")
        self._num_ranks = num_ranks
        features = [
            (f"{table}/{rank}", table, "rows", 0, 0)
            for table in range(len(dims))
            for rank in range(num_ranks)
        ]
        self._core = native.Exchange(list(dims), features, [], 1)

    def fold(self, parts: Sequence[RankPart]) -> OwnerSums:
        """Add up the gradients of all ranks; a rank may send nothing."""
        senders = [part for part in parts if len(part.keys[0])]
        if len(senders) <= 1:
            return self._only(senders[0] if senders else parts[0])
        addresses, sizes, splits, places = self._addresses(parts)
        num_keys = sum(sizes)
        threads = default_threads(num_keys)
        column: tuple[list[int], list[int], list[int], list[bool], int]
        column = (addresses, sizes, [row.data_ptr() for row in splits], [], 1)
        core = self._core.group(column, threads)
        keys = empty(core.key_starts[-1], dtype=torch.int64)
        ends = empty(1, len(self._dims) + 1, dtype=torch.int64)
        core.write(keys.data_ptr(), ends.data_ptr(), threads)
        grads = empty(core.float_starts[-1])
        counts = empty(core.key_starts[-1], dtype=torch.int32)
        pieces = [(core, 0, 0, places)]
        norms = self._core.sum(core, pieces, grads.data_ptr(), counts.data_ptr(), threads)
        ragged = Ragged._unchecked(keys, ends[0])
        if all(part.counts is not None for part in senders):
            counts = self._counts(core, parts, ragged, threads)
        else:
            counts.fill_(1)
        squares = torch.tensor(norms, dtype=torch.float64, device="cpu").square()
        return OwnerSums(ragged, grads, counts, squares)

    def _only(self, part: RankPart) -> OwnerSums:
        """Return what one rank has sent: its keys are distinct already."""
        (keys, splits), grads, counts = part
        widths = (splits.diff() * self._dims).tolist()
        squares = [float(g.double().square().sum()) for g in torch.split_with_sizes(grads, widths)]
        if counts is None:
            counts = torch.ones(len(keys), dtype=torch.int32, device="cpu")
        total = torch.tensor(squares, dtype=torch.float64, device="cpu")
        return OwnerSums(Ragged._unchecked(keys, splits), grads, counts, total)

    def _addresses(
        self, parts: Sequence[RankPart]
    ) -> tuple[list[int], list[int], torch.Tensor, list[int]]:
        """Return addresses and sizes of keys, their splits, and addresses of the gradients."""
        splits = torch.stack([part.keys[1] for part in parts])  # (ranks, tables + 1)
        lengths = splits.diff()
        floats = torch.nn.functional.pad((lengths * self._dims).cumsum(1), (1, 0))
        key_bases = [part.keys[0].data_ptr() for part in parts]
        grad_bases = [part.grads.data_ptr() for part in parts]
        bases = torch.tensor([key_bases, grad_bases], dtype=torch.int64, device="cpu")
        keys = (bases[0].unsqueeze(1) + 8 * splits[:, :-1]).t().flatten().tolist()
        grads = (bases[1].unsqueeze(1) + 4 * floats[:, :-1]).t().flatten().tolist()
        sizes = lengths.t().flatten()
        ends = torch.nn.functional.pad(sizes.unsqueeze(1), (1, 0))
        return keys, sizes.tolist(), ends, grads

    def _counts(
        self, core: object, parts: Sequence[RankPart], keys: Ragged, threads: int
    ) -> torch.Tensor:
        """Add up the occurrences of each key: as floats, which are exact below 2**24."""
        wide = []
        for part in parts:
            widths = self._dims.repeat_interleave(part.keys[1].diff())
            assert part.counts is not None
            wide.append(part._replace(grads=part.counts.float().repeat_interleave(widths)))
        *_, places = self._addresses(wide)
        widths = self._dims.repeat_interleave(keys.lengths)
        sums, ignored = empty(int(widths.sum())), empty(len(widths), dtype=torch.int32)
        pieces = [(core, 0, 0, places)]
        self._core.sum(core, pieces, sums.data_ptr(), ignored.data_ptr(), threads)  # type: ignore[arg-type]
        return sums[widths.cumsum(0) - widths].int()


def cut_by(sizes: Sequence[int], values: torch.Tensor) -> list[torch.Tensor]:
    """Return parts of a flat tensor.

    Example:
        >>> [part.tolist() for part in cut_by([1, 2], torch.arange(3))]
        [[0], [1, 2]]
    """
    starts = itertools.accumulate(sizes, initial=0)
    return [values[first:end] for first, end in itertools.pairwise(starts)]
