"""Where the ids of each feature and shard go in the lists by table and shard."""

import numpy as np
import torch

from monolith.ops.layout_plan import Int64s, TableOrder

__all__ = ["BY_SHARD", "ListPlaces"]

BY_SHARD = 4  # the version whose lists lie in the order (shard, table)


class ListPlaces:
    """Where the rows of every feature and shard go; arrays are (features in table order, shards).

    Args:
        order: the features of each table.
        counts: rows of each feature in each shard.  # (num_features, num_shards)
        version: of the result.
    """

    def __init__(self, order: TableOrder, counts: Int64s, version: int) -> None:
        self._order, self._version = order, version
        self._counts = counts[order.features]
        self._rows_before = order.before(self._counts)
        floats = self._counts * order.dims[:, None]
        self._floats_before = order.before(floats)
        self._row_totals = order.totals(self._counts)  # (num_tables, num_shards)
        self._float_totals = order.totals(floats)  # (num_tables, num_shards)
        self._floats = floats

    @property
    def largest(self) -> int:
        """Floats of the largest list."""
        return int(self._float_totals.max(initial=0))

    def _in_order(self, by_list: Int64s) -> Int64s:
        """From (tables, shards) to the order of the lists."""
        flat: Int64s = np.ravel(by_list.T if self._version == BY_SHARD else by_list)
        return flat

    def _begins(self, sizes: Int64s) -> Int64s:
        """Where each list begins if they lie one after another; (num_tables, num_shards)."""
        flat = self._in_order(sizes)
        begins: Int64s = np.cumsum(flat) - flat
        if self._version == BY_SHARD:
            begins = begins.reshape(sizes.T.shape).T
        return begins.reshape(sizes.shape)

    def _index1(self) -> Int64s:
        """The first number of a code; (num_features, num_shards)."""
        order, num_shards = self._order, self._counts.shape[1]
        shards = np.arange(num_shards)
        if self._version != 2:
            plain: Int64s = order.tables[:, None] * num_shards + shards
            return plain
        width = order.num_features[order.tables][:, None]
        first = (order.first * num_shards)[order.tables][:, None]
        found: Int64s = first + shards * width + order.positions[:, None]
        return found

    def places(self) -> Int64s:
        """As the core reads them: first place in the list, base and stride of codes, by feature."""
        order, version = self._order, self._version
        places = np.empty((*self._counts.shape, 3), dtype=np.int64)
        places[..., 0] = self._begins(self._row_totals)[order.tables] + self._rows_before
        inner = {1: self._rows_before, 2: np.zeros_like(self._counts)}
        places[..., 1] = (self._index1() << 32) + inner.get(version, self._floats_before)
        places[..., 2] = order.dims[:, None] if version >= 3 else 1
        result = np.empty_like(places)
        result[order.features] = places
        return result

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids of each list; row splits and how many of each list; floats of each list."""
        order = self._order
        sizes = np.repeat(order.num_features[:, None] + 1, self._counts.shape[1], axis=1)
        splits = np.empty(sizes.sum(), dtype=np.int64)
        begins = self._begins(sizes)
        splits[begins[order.tables] + order.positions[:, None]] = self._rows_before
        splits[begins + order.num_features[:, None]] = self._row_totals
        arrays = (self._row_totals, sizes, self._float_totals)
        rows, counts, floats = (torch.from_numpy(self._in_order(array)) for array in arrays)
        return rows, torch.from_numpy(splits), counts, floats

    def cuts(self) -> Int64s:
        """Tensor, first float and floats of the rows of each index1."""
        num_tables, num_shards = self._row_totals.shape
        lists = np.arange(num_tables * num_shards).reshape(num_tables, num_shards)
        if self._version == 2:
            cuts = np.empty((self._counts.size, 3), dtype=np.int64)
            parts = (lists[self._order.tables], self._floats_before, self._floats)
            cuts[self._index1().ravel()] = np.stack(parts, axis=-1).reshape(-1, 3)
            return cuts
        tensors, begins = lists, np.zeros_like(lists)
        if self._version == BY_SHARD:
            tensors = np.broadcast_to(np.arange(num_shards), lists.shape)
            begins = np.cumsum(self._float_totals, axis=0) - self._float_totals
        return np.stack((tensors, begins, self._float_totals), axis=-1).reshape(-1, 3)
