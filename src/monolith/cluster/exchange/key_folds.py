"""Fold the equal keys of a call, so that each shard gets a key of a table once."""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from monolith.errors import DataLossError
from monolith.ops import Ragged
from monolith.table._checks import default_threads
from monolith.table.native import empty
from monolith.table.routing import FloorModRouting, PartitionRouting, Routing

if TYPE_CHECKING:
    import monolith._native as _native


def check_floats(
    where: str, values: Any, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> None:
    """Refuse an answer that is not a contiguous tensor of the dtype and shape."""
    is_tensor = isinstance(values, torch.Tensor)
    is_plain = is_tensor and values.is_cpu and values.is_contiguous()
    if is_plain and values.dtype == dtype and values.shape == shape:
        return
    got = f"{values.dtype} of shape {tuple(values.shape)}" if is_tensor else repr(values)[:80]
    raise DataLossError(
        f"{where}: expected an answer of {str(dtype)[6:]} of shape {shape}, got {got}"
    )


def owners_of(routing: Routing) -> list[int]:
    """Return what the core takes: the shard of each partition; empty for floor remainders."""
    return routing.owners if isinstance(routing, PartitionRouting) else []


class KeyFolds:
    """Folds calls on one table.

    Args:
        dim: width of the rows.
        routing: gives each key its shard.
    """

    def __init__(self, dim: int, routing: Routing) -> None:
        import monolith._native as native

        features = [("keys", 0, "rows", 0, 0)]
        self._core = native.Exchange([dim], features, owners_of(routing), routing.num_shards)
        self.dim = dim

    def fold(self, keys: torch.Tensor, threads: int) -> "FoldedKeys":
        """Find the distinct keys of each shard. keys: int64 (n,), contiguous."""
        splits = torch.tensor([0, len(keys)], dtype=torch.int64, device="cpu")
        column: tuple[list[int], list[int], list[int], list[bool], int]
        column = ([keys.data_ptr()], [len(keys)], [splits.data_ptr()], [], 1)
        return FoldedKeys(self._core, self._core.group(column, threads), self.dim, threads)


def key_folds(dim: int, routing: Routing) -> KeyFolds | None:
    """Return what folds the calls of a table; None if the core does not know the routing."""
    is_known = type(routing) in (PartitionRouting, FloorModRouting)
    return KeyFolds(dim, routing) if is_known else None


class FoldedKeys:
    """The distinct keys of one call, shard by shard.

    Args:
        exchange: of the table.
        core: the keys.
        dim: width of the rows.
        threads: most threads to use.
    """

    def __init__(
        self, exchange: "_native.Exchange", core: "_native.ExchangeKeys", dim: int, threads: int
    ) -> None:
        self._exchange, self._core, self._dim, self._threads = exchange, core, dim, threads
        self._starts = core.key_starts

    def parts(self) -> Sequence[torch.Tensor]:
        """Return the keys of each shard."""
        keys = empty(self._starts[-1], dtype=torch.int64)
        splits = empty(len(self._starts) - 1, 2, dtype=torch.int64)
        self._core.write(keys.data_ptr(), splits.data_ptr(), self._threads)
        return self._parts(keys)

    def _sizes(self) -> list[int]:
        return [end - first for first, end in itertools.pairwise(self._starts)]

    def _parts(self, values: torch.Tensor) -> Sequence[torch.Tensor]:
        return [values[first:end] for first, end in itertools.pairwise(self._starts)]

    def spread(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the row of each key of the call, from the rows of each shard's keys."""
        for shard, (part, count) in enumerate(zip(rows, self._sizes(), strict=True)):
            check_floats(f"[ShardedTable.lookup] shard {shard}", part, (count, self._dim))
        out = empty(self._core.num_ids, self._dim)
        answers = [part.data_ptr() for part in rows]
        self._exchange.pool(self._core, answers, 0, 0, [out.data_ptr()], self._threads)
        return out

    def sums(
        self, grads: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], float]:
        """Add up the gradients of equal keys in order; also count them.

        Returns:
            Sums and counts of each shard's keys, and the norm of all sums, which is not finite if a
            gradient is not.
        """
        sums = empty(self._starts[-1], self._dim)
        counts = empty(self._starts[-1], dtype=torch.int32)
        pieces = [(self._core, 0, 0, [grads.data_ptr()])]
        addresses = sums.data_ptr(), counts.data_ptr()
        (norm,) = self._exchange.sum(self._core, pieces, *addresses, self._threads)
        return self._parts(sums), self._parts(counts), norm


class GroupFolds:
    """Folds the keys of calls on several tables, whose keys go to shards by floor remainder.

    Args:
        dims: width of the rows of each table.
        num_shards: number of shards; 1 for keys that were split before.
    """

    def __init__(self, dims: torch.Tensor, num_shards: int = 1) -> None:
        import monolith._native as native

        features = [(str(i), i, "rows", 0, 0) for i in range(len(dims))]
        self._core = native.Exchange(dims.tolist(), features, [], num_shards)
        self._dims = dims

    def fold(self, keys: Ragged) -> "FoldedGroup":
        """Find the distinct keys of each table and shard. keys: a row for each table."""
        return FoldedGroup(self._core, self._dims, keys)


class FoldedGroup:
    """The distinct keys of one call on several tables.

    Args:
        exchange: of the tables.
        dims: width of the rows of each table.
        keys: the keys of the call, with a row for each table.

    Attributes:
        parts: the distinct keys of each shard, with a row for each table.
    """

    def __init__(self, exchange: "_native.Exchange", dims: torch.Tensor, keys: Ragged) -> None:
        self._exchange, self._dims = exchange, dims
        self._threads = default_threads(keys.values.numel())
        lengths, values = keys.lengths, keys.values.contiguous()
        self._lengths, self._float_starts = lengths, _starts(lengths * dims)
        splits = torch.nn.functional.pad(lengths[:, None], (1, 0))
        self._core = exchange.group(
            (
                _addresses(values, _starts(lengths)[:-1]),
                lengths.tolist(),
                _addresses(splits, torch.arange(len(dims), device="cpu") * 2),
                [],
                1,
            ),
            self._threads,
        )
        self._kept = values, splits  # memory that the core reads
        self._keys, self._floats = self._core.key_starts, self._core.float_starts
        distinct = empty(self._keys[-1], dtype=torch.int64)
        ends = empty(len(self._keys) - 1, len(dims) + 1, dtype=torch.int64)
        self._core.write(distinct.data_ptr(), ends.data_ptr(), self._threads)
        values_of = _cut(distinct, self._keys)
        self.parts = [Ragged._unchecked(*part) for part in zip(values_of, ends, strict=True)]

    def spread(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the flat rows of all keys of the call, from those of each shard's keys."""
        for part, (first, end) in zip(rows, itertools.pairwise(self._floats), strict=True):
            check_floats("[FoldedGroup.spread]", part, (end - first,))
        out = empty(int(self._float_starts[-1]))
        apart = _addresses(out, self._float_starts[:-1])
        answers = [part.data_ptr() for part in rows]
        self._exchange.pool(self._core, answers, 0, 0, apart, self._threads)
        return out

    def sums(self, rows: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor], bool]:
        """Add up the flat rows of equal keys in order; also count them.

        Returns:
            Sums and counts of the keys of each shard, and whether all sums are finite.
        """
        rows = rows.detach().contiguous()
        sums = empty(self._floats[-1])
        counts = empty(self._keys[-1], dtype=torch.int32)
        pieces = [(self._core, 0, 0, _addresses(rows, self._float_starts[:-1]))]
        addresses = sums.data_ptr(), counts.data_ptr()
        norms = self._exchange.sum(self._core, pieces, *addresses, self._threads)
        is_finite = all(map(math.isfinite, norms))
        return _cut(sums, self._floats), _cut(counts, self._keys), is_finite

    def add_counts(self, counts: torch.Tensor) -> list[torch.Tensor]:
        """Add up counts of the call's keys, int32 (n,), which may be those of earlier folds."""
        widths = self._dims.repeat_interleave(self._lengths)
        sums, _, _ = self.sums(counts.float().repeat_interleave(widths))
        totals = []
        for part, flat in zip(self.parts, sums, strict=True):
            widths = self._dims.repeat_interleave(part.lengths)
            totals.append(flat[widths.cumsum(0) - widths].int())
        return totals


def _cut(values: torch.Tensor, starts: Sequence[int]) -> list[torch.Tensor]:
    return [values[first:end] for first, end in itertools.pairwise(starts)]


def _starts(sizes: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))


def _addresses(memory: torch.Tensor, numbers: torch.Tensor) -> list[int]:
    """Return the addresses of elements by their numbers."""
    addresses: list[int] = (numbers * memory.element_size() + memory.data_ptr()).tolist()
    return addresses
