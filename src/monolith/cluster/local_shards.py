"""Shards of this process in one call of the core, without the way through their transports."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from monolith.table.calls import TableCalls
from monolith.table.native import OpenCore, empty
from monolith.table.routing import FloorModRouting, PartitionRouting, Routing
from monolith.table.rows import Applied

if TYPE_CHECKING:
    from monolith.table.native import Table


class LocalShards:
    """Lookups and updates of a `ShardedTable`, to the same bits. The split by shard is native.

    Args:
        tables: the shards.
        owners: shard of each partition; empty: the shard is the key's floor remainder.
    """

    def __init__(self, tables: "list[Table]", owners: list[int]) -> None:
        import monolith._native as native

        self._first = tables[0]
        cores = [table._core for table in tables if table._core is not None]
        self._core = native.Shards(cores, owners)

    def lookup(self, keys: torch.Tensor, initial: bool, step: int, threads: int) -> torch.Tensor:
        """`ShardedTable._lookup`."""
        table, n = self._first, keys.numel()
        with OpenCore(self._core, "lookup", table.name) as core:
            out = empty(n, table.dim)
            scales = table._scales(step)
            core.lookup(keys.data_ptr(), n, out.data_ptr(), initial, scales, threads)
        return out

    def apply_gradients(
        self,
        keys: torch.Tensor,
        grads: torch.Tensor,
        rates: list[float],
        step: int,
        now: int,
        threads: int,
    ) -> Applied:
        """`ShardedTable._apply_gradients`."""
        table = self._first
        with OpenCore(self._core, "apply_gradients", table.name) as core:
            arguments = keys.data_ptr(), keys.numel(), grads.data_ptr(), rates, table._scales(step)
            counts = core.apply_gradients(*arguments, step, now, threads)
        return Applied(*counts)


def local_shards(shards: Sequence[TableCalls], routing: Routing) -> LocalShards | None:
    """None where the core cannot do it: one shard needs no split, a policy sees each gradient."""
    if len(shards) == 1 or shards[0].config.non_finite != "refuse":
        return None
    if not all(getattr(shard, "_core", None) is not None for shard in shards):
        return None
    tables = cast("list[Table]", list(shards))
    if type(routing) is PartitionRouting:
        return LocalShards(tables, routing.owners)
    return LocalShards(tables, []) if type(routing) is FloorModRouting else None
