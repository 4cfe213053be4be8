"""Calls on a group whose keys come shard by shard, as requests of several workers do."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from monolith.cluster.table_group import TableGroup
from monolith.ops import Ragged
from monolith.table import _checks as checks
from monolith.table.rows import Applied


class FusedRows(NamedTuple):
    """What `fused_lookup` returns.

    Attributes:
        embeddings: float32, the rows of the ids one after another.
        embedding_splits: int64 (num_shards,), floats of each shard.
        id_offsets: int64 (num_shards * num_tables + 1,), where the ids of each segment begin.
        embedding_offsets: of the same shape, where its floats begin.
    """

    embeddings: torch.Tensor
    embedding_splits: torch.Tensor
    id_offsets: torch.Tensor
    embedding_offsets: torch.Tensor


class _Segments:
    """The ids of each (shard, table), shard after shard, brought into the order of a group.

    sizes [[2, 1], [1, 1]], ids a b | c | d | e  ->  table 0: a b d, table 1: c e
    """

    def __init__(
        self, where: str, group: TableGroup, ids: torch.Tensor, sizes: torch.Tensor, num_shards: int
    ) -> None:
        num_tables = len(group.tables)
        checks.check_tensor((where, ""), "ids", ids, torch.int64, 1)
        sizes = _checked_sizes(where, sizes, num_shards * num_tables, len(ids))
        dims = torch.tensor([table.dim for table in group.tables.values()], device="cpu")
        table_of_segment = torch.arange(num_tables, device="cpu").repeat(num_shards)
        table_of_id = table_of_segment.repeat_interleave(sizes)
        order = torch.argsort(table_of_id, stable=True)
        self.keys = Ragged.from_lengths(ids[order], sizes.view(num_shards, num_tables).sum(0))
        self.id_offsets = _offsets(sizes)
        self.float_offsets = _offsets(sizes * dims[table_of_segment])
        self.floats_of_shard = (sizes * dims[table_of_segment]).view(num_shards, -1).sum(1)
        # Of every float of the segments, its place among those of the group's order.
        dim_of_id = dims[table_of_id]
        starts = torch.empty_like(ids)
        starts[order] = _offsets(dim_of_id[order])[:-1]
        shifts = (starts - _offsets(dim_of_id)[:-1]).repeat_interleave(dim_of_id)
        self.places = torch.arange(len(shifts), device="cpu") + shifts


def fused_lookup(
    group: TableGroup,
    ids: torch.Tensor,
    fused_slot_size: torch.Tensor,
    num_of_shards: int,
    *,
    missing: str = "initial",
    step: int = 0,
) -> FusedRows:
    """Rows of ids that come shard by shard, and table by table within a shard.

    Args:
        group: the tables, in the order of their names.
        ids: int64 (n,).
        fused_slot_size: int64 or int32 (num_of_shards * num_tables,), ids of each segment.
        num_of_shards: of the caller.
        missing: what a missing key reads as.
        step: training step.
    """
    where = "[fused_lookup]"
    segments = _Segments(where, group, ids, fused_slot_size, num_of_shards)
    flat = group.lookup(segments.keys, missing=missing, step=step)
    return FusedRows(
        flat[segments.places],
        segments.floats_of_shard,
        segments.id_offsets,
        segments.float_offsets,
    )


def fused_apply_gradients(
    group: TableGroup,
    ids: torch.Tensor,
    fused_slot_size: torch.Tensor,
    grads: torch.Tensor,
    num_of_shards: int,
    *,
    step: int = 0,
    learning_rates: Mapping[str, Sequence[float]] | None = None,
    now: int | None = None,
) -> Applied:
    """One step per distinct key of each table; equal keys of all shards are summed.

    Args:
        group: the tables, in the order of their names.
        ids: int64 (n,), as in `fused_lookup`.
        fused_slot_size: as in `fused_lookup`.
        grads: float32, in the order of its embeddings.
        num_of_shards: of the caller.
        step: training step.
        learning_rates: of some tables, by name.
        now: time of the update in seconds.
    """
    where = "[fused_apply_gradients]"
    segments = _Segments(where, group, ids, fused_slot_size, num_of_shards)
    checks.check_tensor((where, ""), "grads", grads, torch.float32, 1)
    if len(grads) != len(segments.places):
        raise ValueError(
            f"{where} expected grads with {len(segments.places)} numbers, the rows of all ids, got "
            f"{len(grads)}"
        )
    ordered = torch.empty_like(grads)
    ordered[segments.places] = grads
    return group.apply_gradients(
        segments.keys, ordered, step=step, learning_rates=learning_rates, now=now
    )


def _checked_sizes(where: str, sizes: torch.Tensor, expected: int, num_ids: int) -> torch.Tensor:
    if isinstance(sizes, torch.Tensor) and sizes.dtype == torch.int32:
        sizes = sizes.long()
    checks.check_tensor((where, ""), "fused_slot_size", sizes, torch.int64, 1)
    if len(sizes) != expected:
        raise ValueError(
            f"{where} expected {expected} sizes, shards times tables, got {len(sizes)}"
        )
    if (sizes < 0).any() or int(sizes.sum()) != num_ids:
        raise ValueError(
            f"{where} expected sizes >= 0 that sum up to {num_ids} ids, got {sizes.tolist()[:8]} "
            f"with sum {int(sizes.sum())}"
        )
    return sizes


def _offsets(sizes: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
