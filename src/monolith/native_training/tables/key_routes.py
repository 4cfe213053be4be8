"""Two ways of ids by slot to the shards and of their rows back; both give the same rows.

Raw:    the ids of all slots are one ragged batch, made distinct and split in a few calls.
Packed: the ids of each slot are made distinct and split alone, then packed for each shard.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from monolith.native_training.ops.mapping import map_id_to_embedding
from monolith.native_training.ops.offset_fill import (
    fill_with_offset_map,
    fill_with_offset_map_gradient,
)
from monolith.native_training.ops.packing import pack_tensors
from monolith.native_training.ops.segment import fused_value_rowids
from monolith.native_training.ops.split import ragged_split_by_indices, split_by_indices
from monolith.native_training.ops.unique import unique_key_with_value_and_offset
from monolith.native_training.tables.sharded_group import ShardedGroup
from monolith.ops import Ragged

Pairs = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""Ids and rows by slot."""


class KeyRoutes(ABC):
    """Splits ids by shard.

    Args:
        group: the tables behind the shards, whose names are the slots.
    """

    def __init__(self, group: ShardedGroup) -> None:
        self._group = group

    @abstractmethod
    def lookup(self, ids: Mapping[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
        """Rows of the ids, (n, dim) of the slots that are asked for."""

    def joined(self, pairs: Pairs) -> tuple[Ragged, torch.Tensor]:
        """Return the keys and flat rows of all slots, in the order of names."""
        keys = self._group.order.keys({slot: ids for slot, (ids, _) in pairs.items()})
        rows = self._group.order.flat({slot: rows for slot, (_, rows) in pairs.items()})
        return keys, rows

    @abstractmethod
    def split(self, pairs: Pairs) -> tuple[list[Ragged], list[torch.Tensor]]:
        """Keys and flat rows of each shard; equal ids stay in their order."""

    def split_flat(
        self, keys: Ragged, rows: torch.Tensor
    ) -> tuple[list[Ragged], list[torch.Tensor]]:
        """Return keys and flat rows of each shard, from those of all slots."""
        if self._group.num_shards == 1:
            return [keys], [rows.detach()]
        dims = self._group.order.widths
        parts, places = self._by_shard(keys)
        widths = dims[fused_value_rowids(keys)]
        numbers = torch.arange(len(widths) + 1, device="cpu")
        one_place_each = Ragged(widths.cumsum(0) - widths, numbers)
        return parts, fill_with_offset_map_gradient(places, rows.detach(), one_place_each, dims)

    def _by_shard(self, keys: Ragged) -> tuple[list[Ragged], list[Ragged]]:
        if self._group.num_shards == 1:
            return [keys], [Ragged(torch.arange(len(keys.values), device="cpu"), keys.row_splits)]
        return ragged_split_by_indices(
            self._group.routing.shard_of(keys.values), keys, self._group.num_shards
        )


class RawRoutes(KeyRoutes):
    """All slots at once; `lookup_flat` has no cost per slot."""

    def lookup(self, ids: Mapping[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
        """Rows of the ids, (n, dim) of the slots that are asked for."""
        flat = self.lookup_flat(self._group.order.keys(ids), step)
        return self._group.order.rows(flat, {slot: len(each) for slot, each in ids.items()})

    def lookup_flat(self, keys: Ragged, step: int) -> torch.Tensor:
        """Rows of the keys, one after another."""
        dims = self._group.order.widths
        unique, offsets = unique_key_with_value_and_offset(keys, dims)
        parts, places = self._by_shard(unique)
        rows = self._group.lookup(parts, step=step, is_distinct=True)
        return fill_with_offset_map(places, rows, offsets, dims, self._group.num_floats(keys))

    def split(self, pairs: Pairs) -> tuple[list[Ragged], list[torch.Tensor]]:
        """Keys and flat rows of each shard."""
        return self.split_flat(*self.joined(pairs))


class PackedRoutes(KeyRoutes):
    """One slot after another; each shard has one packed tensor."""

    def lookup(self, ids: Mapping[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
        """Rows of the ids, (n, dim) of the slots that are asked for."""
        distinct = {slot: torch.unique(each) for slot, each in ids.items()}
        by_slot = {slot: self._split(each, each) for slot, each in distinct.items()}
        shards = self._shards(by_slot)
        parts = [self._group.order.keys(shard) for shard in shards]
        flats = self._group.lookup(parts, step=step, is_distinct=True)
        rows = [
            self._group.order.rows(flat, {slot: len(each) for slot, each in shard.items()})
            for shard, flat in zip(shards, flats, strict=True)
        ]
        return {
            slot: map_id_to_embedding(by_slot[slot], [each[slot] for each in rows], given)
            for slot, given in ids.items()
        }

    def split(self, pairs: Pairs) -> tuple[list[Ragged], list[torch.Tensor]]:
        """Keys and flat rows of each shard."""
        ids = {slot: self._split(own, own) for slot, (own, _) in pairs.items()}
        rows = {slot: self._split(own, values.detach()) for slot, (own, values) in pairs.items()}
        parts = [self._group.order.keys(shard) for shard in self._shards(ids)]
        nothing = torch.empty(0, dtype=torch.float32, device="cpu")
        packed = [pack_tensors(shard)[0] if shard else nothing for shard in self._shards(rows)]
        return parts, packed

    def _split(self, ids: torch.Tensor, values: torch.Tensor) -> Sequence[torch.Tensor]:
        return split_by_indices(self._group.routing.shard_of(ids), values, self._group.num_shards)

    def _shards(
        self, by_slot: Mapping[str, Sequence[torch.Tensor]]
    ) -> list[dict[str, torch.Tensor]]:
        """The tensors of the slots that are asked for, for each shard."""
        return [
            {slot: parts[shard] for slot, parts in by_slot.items()}
            for shard in range(self._group.num_shards)
        ]
