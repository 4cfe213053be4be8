"""A call's keys by shard, and the shards' rows back in the order of the call."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.table.initializers import key_hashes
from monolith.table.routing import PartitionRouting, Routing
from monolith.table.rows import Rows


class Split:
    """Which keys of a call go to which shard. Equal keys stay in the order of the call.

    ```
    keys   5 8 5 3      shard of each   1 0 1 0
    parts  [8 3] [5 5]
    ```

    Args:
        routing: gives the shard of each key.
        keys: int64 (n,).
    """

    def __init__(self, routing: Routing, keys: torch.Tensor) -> None:
        self._order: torch.Tensor | None = None  # (n,): places in the call, by shard
        self._back: torch.Tensor | None = None  # its inverse
        self.sizes = [len(keys)]
        if routing.num_shards > 1:
            self._sort(routing.shard_of(keys).numpy(), routing.num_shards)

    @classmethod
    def of_partitions(cls, routing: PartitionRouting, partitions: torch.Tensor) -> "Split":
        """The split of rows that have a partition in place of a key."""
        split = cls(routing, partitions[:0])
        split._sort(routing.owner_of(partitions).numpy(), routing.num_shards)
        return split

    @classmethod
    def of_shards(cls, shards: torch.Tensor, num_shards: int) -> "Split":
        """Return the split of rows whose shards are known: int64 (n,)."""
        split = cls(PartitionRouting(1), shards)
        split._sort(shards.numpy(), num_shards)
        return split

    def _sort(self, shards: NDArray[np.int64], num_shards: int) -> None:
        # Of 16 bits: numpy sorts them by radix, many times quicker than wider ones.
        order = np.argsort(shards.astype(np.int16), kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        self._order, self._back = torch.from_numpy(order), torch.from_numpy(back)
        self.sizes = np.bincount(shards, minlength=num_shards).tolist()

    def parts(self, values: torch.Tensor) -> Sequence[torch.Tensor]:
        """The values of each shard's keys, (n, ...) -> one (m, ...) per shard."""
        if self._order is None:
            return (values,)
        return torch.split_with_sizes(values.detach().index_select(0, self._order), self.sizes)

    def rows(self, rows: Rows) -> list[Rows]:
        """`parts` of every column."""
        columns = {name: self.parts(column) for name, column in rows.columns.items()}
        keys, times = self.parts(rows.keys), self.parts(rows.times)
        return [
            Rows(keys[i], times[i], {name: parts[i] for name, parts in columns.items()})
            for i in range(len(self.sizes))
        ]

    def merged(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Undoes `parts`."""
        values = _joined(parts)
        return values if self._back is None else values.index_select(0, self._back)

    def merged_rows(self, parts: Sequence[Rows]) -> Rows:
        """Undoes `rows`."""
        rows = concatenated(parts)
        columns = {name: self.merged([column]) for name, column in rows.columns.items()}
        return Rows(self.merged([rows.keys]), self.merged([rows.times]), columns)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def concatenated(parts: Sequence[Rows]) -> Rows:
    """Chunks of the same columns as one."""
    if len(parts) == 1:
        return parts[0]
    columns = {name: _joined([part.columns[name] for part in parts]) for name in parts[0].columns}
    return Rows(
        _joined([part.keys for part in parts]), _joined([part.times for part in parts]), columns
    )


def by_hash(keys: torch.Tensor) -> torch.Tensor:
    """Places of the keys in ascending order of their hash."""
    return torch.from_numpy(np.argsort(key_hashes(keys.numpy())))


def is_finite(values: torch.Tensor) -> bool:
    """Whether there is neither NaN nor infinity; makes nothing of the values' size."""
    if not values.numel():
        return True
    least, most = torch.aminmax(values.detach())
    return bool(torch.isfinite(least) & torch.isfinite(most))
