"""Two ways of ids by slot to the shards and of their rows back; both give the same rows.

Raw:    the ids of all slots are one ragged batch, made distinct and split in a few calls.
Packed: the ids of each slot are made distinct and split alone, then packed for each shard.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from monolith.embedding.sharded_group import ShardedGroup
from monolith.ops import (
    Ragged,
    fill_with_offset_map,
    fill_with_offset_map_gradient,
    map_id_to_embedding,
    pack_tensors,
    ragged_split_by_indices,
    split_by_indices,
    unique_key_with_value_and_offset,
    unpack_tensors,
)

__all__ = ["KeyRoutes", "PackedRoutes", "RawRoutes"]

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
        """Rows of the ids, (n, dim) of each slot at least that is asked for."""

    @abstractmethod
    def split(self, pairs: Pairs) -> tuple[list[Ragged], list[torch.Tensor]]:
        """Keys and flat rows of each shard; equal ids stay in their order."""


class RawRoutes(KeyRoutes):
    """All slots at once; `lookup_flat` and `split_flat` have no cost per slot."""

    def lookup(self, ids: Mapping[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
        """Rows of the ids, (n, dim) of every slot."""
        keys = self._joined(ids)
        flat = self.lookup_flat(keys, step)
        sizes = keys.lengths * torch.tensor(self._group.dims, device="cpu")
        rows = torch.split_with_sizes(flat, sizes.tolist())
        names = zip(self._group.configs, self._group.dims, rows, strict=True)
        return {name: part.view(-1, dim) for name, dim, part in names}

    def lookup_flat(self, keys: Ragged, step: int) -> torch.Tensor:
        """Rows of the keys, one after another."""
        dims = self._group.dims
        unique, offsets = unique_key_with_value_and_offset(keys, dims)
        parts, places = self._by_shard(unique)
        rows = self._group.lookup(parts, step=step)
        return fill_with_offset_map(places, rows, offsets, dims, self._group.num_floats(keys))

    def split(self, pairs: Pairs) -> tuple[list[Ragged], list[torch.Tensor]]:
        """Keys and flat rows of each shard."""
        keys = self._joined({slot: ids for slot, (ids, _) in pairs.items()})
        rows = [
            pairs[name][1].detach().reshape(-1) for name in self._group.configs if name in pairs
        ]
        return self.split_flat(keys, torch.cat(rows) if rows else torch.empty(0, device="cpu"))

    def split_flat(
        self, keys: Ragged, rows: torch.Tensor
    ) -> tuple[list[Ragged], list[torch.Tensor]]:
        """The same of keys and rows of all slots."""
        if self._group.num_shards == 1:
            return [keys], [rows.detach()]
        dims = self._group.dims
        parts, places = self._by_shard(keys)
        widths = torch.tensor(dims, device="cpu").repeat_interleave(keys.lengths)
        numbers = torch.arange(len(widths) + 1, device="cpu")
        one_place_each = Ragged(widths.cumsum(0) - widths, numbers)
        return parts, fill_with_offset_map_gradient(places, rows.detach(), one_place_each, dims)

    def _by_shard(self, keys: Ragged) -> tuple[list[Ragged], list[Ragged]]:
        if self._group.num_shards == 1:
            return [keys], [Ragged(torch.arange(len(keys.values), device="cpu"), keys.row_splits)]
        return ragged_split_by_indices(
            self._group.routing.shard_of(keys.values), keys, self._group.num_shards
        )

    def _joined(self, ids: Mapping[str, torch.Tensor]) -> Ragged:
        """A row for each slot."""
        none = torch.empty(0, dtype=torch.int64, device="cpu")
        columns = [ids.get(name, none) for name in self._group.configs]
        lengths = torch.tensor([len(column) for column in columns], device="cpu")
        return Ragged.from_lengths(torch.cat(columns), lengths)


class PackedRoutes(KeyRoutes):
    """One slot after another; each shard has one packed tensor."""

    def lookup(self, ids: Mapping[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
        """Rows of the ids, (n, dim) of the slots that are asked for."""
        unique = {slot: torch.unique(each) for slot, each in ids.items()}
        by_slot = {slot: self._split(each, each) for slot, each in unique.items()}
        parts = [self._packed(shard) for shard in self._shards(by_slot, torch.int64)]
        flat = self._group.lookup(parts, step=step)
        shapes = {name: (None, config.dim) for name, config in self._group.configs.items()}
        widths = torch.tensor(self._group.dims, device="cpu")
        rows = [
            unpack_tensors(shapes, (each, part.lengths * widths))
            for part, each in zip(parts, flat, strict=True)
        ]
        return {
            slot: map_id_to_embedding(by_slot[slot], [each[slot] for each in rows], given)
            for slot, given in ids.items()
        }

    def split(self, pairs: Pairs) -> tuple[list[Ragged], list[torch.Tensor]]:
        """Keys and flat rows of each shard."""
        ids = {slot: self._split(own, own) for slot, (own, _) in pairs.items()}
        rows = {slot: self._split(own, values.detach()) for slot, (own, values) in pairs.items()}
        packed = [pack_tensors(shard)[0] for shard in self._shards(rows, torch.float32)]
        return [self._packed(shard) for shard in self._shards(ids, torch.int64)], packed

    def _split(self, ids: torch.Tensor, values: torch.Tensor) -> Sequence[torch.Tensor]:
        return split_by_indices(self._group.routing.shard_of(ids), values, self._group.num_shards)

    def _shards(
        self, by_slot: Mapping[str, Sequence[torch.Tensor]], dtype: torch.dtype
    ) -> list[dict[str, torch.Tensor]]:
        """The tensors of every slot for each shard; empty where a slot is not asked for."""
        none = torch.empty(0, dtype=dtype, device="cpu")
        nothing = [none] * self._group.num_shards
        return [
            {name: by_slot.get(name, nothing)[shard] for name in self._group.configs}
            for shard in range(self._group.num_shards)
        ]

    def _packed(self, ids: dict[str, torch.Tensor]) -> Ragged:
        """`pack_tensors` packs in the order of names, which is that of the tables."""
        return Ragged.from_lengths(*pack_tensors(ids))
