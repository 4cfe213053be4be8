"""Many tables of this process, with the calls of the reference system."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from monolith.cluster.shard_hosts import short_name
from monolith.cluster.slot_packing import SlotPacking
from monolith.cluster.table_group import TableGroup
from monolith.native_training.tables.entry_config import HashTableConfigInstance
from monolith.native_training.tables.fused import FusedRows, fused_apply_gradients, fused_lookup
from monolith.native_training.tables.merged_table import Pairs
from monolith.native_training.tables.sharded_group import (
    restore_names_of,
    sweeps_of,
    table_configs,
)
from monolith.native_training.tables.updates import AppliedUpdate, Completion, RunningUpdates
from monolith.ops import Ragged
from monolith.table import Table
from monolith.table.base import BaseTable
from monolith.table.calls import Clock, wall_clock
from monolith.table.config import TableConfig
from monolith.table.sweep import TableSweep

if TYPE_CHECKING:
    from typing_extensions import Self


class MultiTypeHashTable:
    """Tables by slot, read and updated together by a `TableGroup`. Keys of slots never meet.

    A call takes and returns tensors by slot, and has no cost for slots that it does not name. Any
    two calls may run at once from any two threads. What is missing reads as in `Table.lookup`.

    Args:
        slot_to_config: what the table of each slot is.
        clock: gives the time of an update.

    Attributes:
        group: the tables; `group.tables` has each by its slot, for saves and the other verbs.
        sweeps: evict expired rows of the slots whose configs ask for it, until `close`.

    Example:
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Segment, Zeros
        >>> slots = {name: TableConfig(name, Segment(1, SGD(1.0), Zeros())) for name in "ab"}
        >>> with MultiTypeHashTable(slots) as table:
        ...     table.apply_gradients({"b": (torch.tensor([7, 7]), torch.ones(2, 1))}).num_applied
        ...     table.lookup({"b": torch.tensor([7, 8])}), table.size("b")
        1
        ({'b': tensor([[-2.],
                [ 0.]])}, 1)
    """

    def __init__(
        self,
        slot_to_config: Mapping[str, HashTableConfigInstance | TableConfig],
        *,
        clock: Clock = wall_clock,
    ) -> None:
        configs = table_configs(type(self).__name__, slot_to_config)
        self.group = TableGroup([Table(config, clock=clock) for config in configs])
        for name, others in restore_names_of(slot_to_config).items():
            self.group.tables[name].restore_names = others
        self.sweeps = {
            name: TableSweep(self.group.tables[name], seconds, clock)
            for name, seconds in sweeps_of(slot_to_config).items()
        }
        dims = {name: table.dim for name, table in self.group.tables.items()}
        self._updates = RunningUpdates(short_name(list(dims)))
        self._order = SlotPacking(dims, type(self).__name__)

    @property
    def tables(self) -> Mapping[str, BaseTable]:
        """Return the tables by slot."""
        return self.group.tables

    def lookup(
        self, slot_to_id: Mapping[str, torch.Tensor], *, step: int = 0
    ) -> dict[str, torch.Tensor]:
        """Rows of the ids, of the slots that are asked for; nothing is stored.

        Args:
            slot_to_id: int64 (n,) each.
            step: training step, for a `OneBit` view.

        Returns:
            float32 (n, dim) each.
        """
        for slot, ids in slot_to_id.items():
            self._order.check_ids("lookup", slot, ids)
        flat = self.group.lookup(self._order.keys(slot_to_id), step=step)
        rows = self._order.rows(flat, {slot: len(ids) for slot, ids in slot_to_id.items()})
        return {slot: rows[slot] for slot in slot_to_id}

    def assign(self, slot_to_id_and_value: Pairs, *, now: int | None = None) -> "Self":
        """Set rows; of equal ids of a slot the last wins. Returns this table."""
        pairs = self._joined("assign", slot_to_id_and_value)
        with self._updates.update():
            self.group.assign(*pairs, now=now)
        return self

    def assign_add(self, slot_to_id_and_value: Pairs, *, now: int | None = None) -> "Self":
        """Add to rows; values of equal ids of a slot are summed. Returns this table."""
        pairs = self._joined("assign_add", slot_to_id_and_value)
        with self._updates.update():
            self.group.assign_add(*pairs, now=now)
        return self

    def apply_gradients(
        self,
        slot_to_id_and_grad: Pairs,
        *,
        step: int = 0,
        learning_rates: Mapping[str, Sequence[float]] | None = None,
        now: int | None = None,
    ) -> AppliedUpdate:
        """One optimizer step per distinct id of each slot, on the sum of its gradients.

        Args:
            slot_to_id_and_grad: ids and gradients, int64 (n,) and float32 (n, dim).
            step: training step.
            learning_rates: of some slots, by name, one per segment; the others have their own.
            now: time of the update in seconds.

        Returns:
            Counts over all slots; `as_op()` gives a handle to wait for updates.
        """
        keys, grads = self._joined("apply_gradients", slot_to_id_and_grad)
        return self._apply(keys, grads, step=step, learning_rates=learning_rates, now=now)

    def _apply(self, keys: Ragged, grads: torch.Tensor, **options: Any) -> AppliedUpdate:
        with self._updates.update():
            applied = self.group.apply_gradients(keys, grads, **options)
        return AppliedUpdate.of([applied], self._updates)

    def as_op(self) -> Completion:
        """Return a handle that is done when the updates that run now have ended."""
        return self._updates.completion()

    def reinitialize(self, slot: str, ids: torch.Tensor, *, now: int | None = None) -> torch.Tensor:
        """Only `MultiHashTable` has it."""
        raise NotImplementedError(
            f"[{type(self).__name__}.reinitialize] expected a MultiHashTable, got slot {slot!r} of "
            "independent tables; call reinitialize of group.tables[slot]"
        )

    def size(self, slot: str) -> int:
        """Number of rows of a slot."""
        self._order.check_ids("size", slot, torch.empty(0, dtype=torch.int64, device="cpu"))
        return len(self.group.tables[slot])

    def get_table_dim_sizes(self) -> list[int]:
        """Width of the rows of each slot, in the order of their names."""
        return self._order.widths.tolist()

    def close(self) -> None:
        """Free the tables. Closing twice is fine."""
        for table in self.group.tables.values():
            table.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _joined(self, verb: str, pairs: Pairs) -> tuple[Ragged, torch.Tensor]:
        """Keys and flat rows of the slots in a call."""
        for slot, (ids, rows) in pairs.items():
            self._order.check_rows(verb, slot, ids, rows)
        keys = self._order.keys({slot: ids for slot, (ids, _) in pairs.items()})
        return keys, self._order.flat({slot: rows for slot, (_, rows) in pairs.items()})


class MultiHashTable(MultiTypeHashTable):
    """`MultiTypeHashTable` with raw calls: a row of keys for each slot, in the order of names.

    Rows and gradients are one flat float32 tensor in the same order. A thousand slots cost no more
    Python than one.

    Example:
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Segment, Zeros
        >>> slots = {name: TableConfig(name, Segment(1, SGD(1.0), Zeros())) for name in "ab"}
        >>> with MultiHashTable(slots) as table:
        ...     keys = Ragged.from_lists([[7], [7, 8]])
        ...     table.raw_apply_gradients(keys, torch.tensor([1.0, 2.0, 3.0])).num_applied
        ...     table.raw_lookup(keys)
        3
        tensor([-1., -2., -3.])
    """

    def raw_lookup(self, keys: Ragged, *, step: int = 0) -> torch.Tensor:
        """Rows of the keys, one after another, float32 (num_floats,).

        Args:
            keys: int64, a row for each slot; or those of several requests, one after another.
            step: training step, for a `OneBit` view.
        """
        num_slots = len(self.group.tables)
        num_requests = keys.num_rows // num_slots if isinstance(keys, Ragged) else 1
        if num_requests < 2 or keys.num_rows % num_slots:
            return self.group.lookup(keys, step=step)  # refuses what does not fit
        return self.fused_lookup(keys.values, keys.lengths, num_requests, step=step).embeddings

    def raw_assign(
        self, keys: Ragged, values: torch.Tensor, *, now: int | None = None
    ) -> "MultiHashTable":
        """Set rows; of equal keys of a slot the last wins. Returns this table."""
        with self._updates.update():
            self.group.assign(keys, values, now=now)
        return self

    def raw_apply_gradients(
        self,
        keys: Ragged,
        grads: torch.Tensor,
        *,
        step: int = 0,
        learning_rates: Mapping[str, Sequence[float]] | None = None,
        now: int | None = None,
    ) -> AppliedUpdate:
        """`apply_gradients` of keys and gradients as `raw_lookup` has them."""
        return self._apply(keys, grads, step=step, learning_rates=learning_rates, now=now)

    def reinitialize(self, slot: str, ids: torch.Tensor, *, now: int | None = None) -> torch.Tensor:
        """Give the ids of a slot fresh rows.

        Returns:
            int32 (n,): 1 where the id existed, 0 where it was created, -1 for every id where there
            is no such slot.
        """
        return self.group.reinitialize(slot, ids, now=now)

    def fused_lookup(
        self, ids: torch.Tensor, fused_slot_size: torch.Tensor, num_of_shards: int, *, step: int = 0
    ) -> FusedRows:
        """`fused_lookup` of these tables (`fused.py`)."""
        return fused_lookup(self.group, ids, fused_slot_size, num_of_shards, step=step)

    def fused_apply_gradient(
        self,
        ids: torch.Tensor,
        fused_slot_size: torch.Tensor,
        grads: torch.Tensor,
        num_of_shards: int,
        *,
        step: int = 0,
        learning_rates: Mapping[str, Sequence[float]] | None = None,
        now: int | None = None,
    ) -> AppliedUpdate:
        """`fused_apply_gradients` of these tables (`fused.py`)."""
        with self._updates.update():
            applied = fused_apply_gradients(
                self.group,
                ids,
                fused_slot_size,
                grads,
                num_of_shards,
                step=step,
                learning_rates=learning_rates,
                now=now,
            )
        return AppliedUpdate.of([applied], self._updates)
