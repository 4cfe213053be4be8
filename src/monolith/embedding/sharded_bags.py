"""The pooled verbs of a table in shards: rows by key through the shards, the rest in the core."""

from typing import TYPE_CHECKING

import torch

from monolith.embedding.bag_verbs import BagVerbs
from monolith.embedding.bags import BagGradients, Bags, GradientSum, PooledRows
from monolith.embedding.native_bags import address, bags_tuple, piece_tuple
from monolith.embedding.native_core import OpenCore, empty
from monolith.embedding.rows import Applied

if TYPE_CHECKING:
    import monolith._native as _native
else:
    try:
        import monolith._native as _native
    except ImportError:
        _native = None

__all__ = ["ShardedBags"]


class ShardedBags(BagVerbs):
    """Pools what `_lookup` reads and spreads what `_apply_gradients` takes, with native loops.

    The shards see the gradient of every occurrence of a key: admission counts them. Without the
    compiled core the meaning in `BagVerbs` does the work.
    """

    def _lookup_bags(self, bags: Bags, initial: bool, step: int, threads: int) -> PooledRows:
        if _native is None:
            return super()._lookup_bags(bags, initial, step, threads)
        bags = bags.checked()
        rows = self._lookup(bags.keys, initial, step, threads)
        with OpenCore(_native, "lookup_bags", self.name) as core:
            values, winners = empty(bags.num_bags, self.dim), None
            if bags.mode == "max":
                winners = empty(bags.num_bags, self.dim, dtype=torch.int32)
            buffers = rows.data_ptr(), self.dim, values.data_ptr(), address(winners)
            core.pool_rows(bags_tuple(bags), *buffers, threads)
        return PooledRows(values, winners)

    def _sum_bag_gradients(self, queue: list[BagGradients], threads: int) -> GradientSum:
        if _native is None:
            return super()._sum_bag_gradients(queue, threads)
        with OpenCore(_native, "sum_bag_gradients", self.name) as core:
            summed = core.GradientSum([piece_tuple(piece) for piece in queue], self.dim, threads)
        return GradientSum(queue, summed.norm, summed)

    def _apply_bag_gradients(
        self, summed: GradientSum, rates: list[float], step: int, now: int, threads: int
    ) -> Applied:
        if summed.core is None:
            return super()._apply_bag_gradients(summed, rates, step, now, threads)
        nothing = empty(0, dtype=torch.int64)
        keys = torch.cat([nothing, *(piece.bags.keys.reshape(-1) for piece in summed.queue)])
        grads = empty(len(keys), self.dim)
        summed.core.write_out(grads.data_ptr())
        return self._apply_gradients(keys, grads, rates, step, now, threads)
