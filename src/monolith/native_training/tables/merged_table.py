"""Slots with equal configs in one table."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from monolith.native_training.tables.entry_config import HashTableConfigInstance
from monolith.native_training.tables.table_merge import SubTables, merge_feature_config
from monolith.native_training.tables.updates import AppliedUpdate, Completion
from monolith.table import _checks as checks

if TYPE_CHECKING:
    from typing_extensions import Self

Pairs = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""Ids and rows by slot."""


class MultiTypeTable(Protocol):
    """Tables by slot; `DistributedMultiTypeHashTable` is one."""

    def lookup(
        self, slot_to_id: Mapping[str, torch.Tensor], *, step: int = 0
    ) -> dict[str, torch.Tensor]:
        """Rows by slot."""

    def assign(self, slot_to_id_and_value: Pairs, *, now: int | None = None) -> Any:
        """Set rows."""

    def assign_add(self, slot_to_id_and_value: Pairs, *, now: int | None = None) -> Any:
        """Add to rows."""

    def apply_gradients(
        self,
        slot_to_id_and_grad: Pairs,
        *,
        step: int = 0,
        learning_rates: Mapping[str, Sequence[float]] | None = None,
        now: int | None = None,
    ) -> AppliedUpdate:
        """One step per distinct id."""

    def as_op(self) -> Completion:
        """A handle that is done when the updates that run now have ended."""


class MergedMultiTypeHashTable:
    """Slots whose configs are equal share one table, and so do equal ids of these slots.

    The caller keeps the ids of different slots apart, as fids do, which carry their slot.

    Args:
        slot_to_config: what the table of each slot is.
        factory: makes the tables, from configs by name (`get_sub_table_name`).

    Attributes:
        sub_tables: the tables, and which slot has which.
        table: what the factory made.

    Example:
        >>> from monolith.native_training.tables import DistributedMultiTypeHashTable
        >>> from monolith.cluster import LocalServers
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Zeros
        >>> from monolith.native_training.tables.entry_config import *
        >>> from monolith.native_training.tables.entry_parts import Fp32Compressor
        >>> segment = CombineAsSegment(1, Zeros(), SGD(), Fp32Compressor())
        >>> config = CuckooHashTableConfig().table_config(EntryConfig([segment]))
        >>> slots = {name: HashTableConfigInstance(config, [1.0]) for name in ("slot1", "slot2")}
        >>> with LocalServers(2) as servers:
        ...     table = MergedMultiTypeHashTable(
        ...         slots, lambda configs: DistributedMultiTypeHashTable(configs, servers)
        ...     )
        ...     _ = table.assign({"slot1": (torch.tensor([1 << 48]), torch.ones(1, 1))})
        ...     print(table.lookup({"slot1": torch.tensor([1 << 48])}))
        {'slot1': tensor([[1.]])}
    """

    def __init__(
        self,
        slot_to_config: Mapping[str, HashTableConfigInstance],
        factory: Callable[[dict[str, HashTableConfigInstance]], MultiTypeTable],
    ) -> None:
        self.sub_tables: SubTables = merge_feature_config(slot_to_config, ids_carry_slot=True)
        self.table = factory(self.sub_tables.sub_table_name_to_config)
        configs = self.sub_tables.sub_table_name_to_config
        self._dims = {table: config.table(table).dim for table, config in configs.items()}

    def lookup(
        self, slot_to_id: Mapping[str, torch.Tensor], *, step: int = 0
    ) -> dict[str, torch.Tensor]:
        """Rows of the ids, of the slots that are asked for; nothing is stored."""
        slots = self._by_table("lookup", slot_to_id)
        for slot, each in slot_to_id.items():
            checks.check_part(_where("lookup", slot), "ids", each, torch.int64, 1)
        ids = {table: torch.cat([slot_to_id[s] for s in own]) for table, own in slots.items()}
        found: dict[str, torch.Tensor] = {}
        for table, rows in self.table.lookup(ids, step=step).items():
            sizes = [len(slot_to_id[slot]) for slot in slots[table]]
            found.update(zip(slots[table], torch.split(rows, sizes), strict=True))
        return {slot: found[slot] for slot in slot_to_id}

    def assign(self, slot_to_id_and_value: Pairs, *, now: int | None = None) -> "Self":
        """Set rows; of equal ids the last wins, slots in the order of names. Returns this table."""
        self.table.assign(self._joined("assign", slot_to_id_and_value), now=now)
        return self

    def assign_add(self, slot_to_id_and_value: Pairs, *, now: int | None = None) -> "Self":
        """Add to rows; values of equal ids are summed. Returns this table."""
        self.table.assign_add(self._joined("assign_add", slot_to_id_and_value), now=now)
        return self

    def apply_gradients(
        self,
        slot_to_id_and_grad: Pairs,
        *,
        step: int = 0,
        learning_rates: Mapping[str, Sequence[float]] | None = None,
        now: int | None = None,
    ) -> AppliedUpdate:
        """One optimizer step per distinct id, on the sum of its gradients.

        Args:
            slot_to_id_and_grad: ids and gradients by slot, int64 (n,) and float32 (n, dim).
            step: training step.
            learning_rates: of some tables, by the name of the table.
            now: time of the update in seconds.
        """
        pairs = self._joined("apply_gradients", slot_to_id_and_grad)
        return self.table.apply_gradients(pairs, step=step, learning_rates=learning_rates, now=now)

    def as_op(self) -> Completion:
        """Return a handle that is done when the updates that run now have ended everywhere."""
        return self.table.as_op()

    def _by_table(self, verb: str, slots: Mapping[str, object]) -> dict[str, list[str]]:
        """The slots of each table that is asked for, in the order of their names."""
        table_of = self.sub_tables.feature_to_sub_table_name
        found: dict[str, list[str]] = {}
        for slot in sorted(slots):
            if slot not in table_of:
                raise ValueError(
                    f"[MergedMultiTypeHashTable.{verb}] expected slots of the table, got {slot!r}; "
                    f"it has {', '.join(table_of)}"
                )
            found.setdefault(table_of[slot], []).append(slot)
        return found

    def _joined(self, verb: str, pairs: Pairs) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        joined = {}
        for table, slots in self._by_table(verb, pairs).items():
            for slot in slots:
                self._check_pair(verb, slot, *pairs[slot])
            ids, rows = zip(*(pairs[slot] for slot in slots), strict=True)
            joined[table] = (torch.cat(ids), torch.cat(rows))
        return joined

    def _check_pair(self, verb: str, slot: str, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Joined, rows that one slot lacks could be those that another has too many."""
        where = _where(verb, slot)
        checks.check_part(where, "ids", ids, torch.int64, 1)
        dim = self._dims[self.sub_tables.feature_to_sub_table_name[slot]]
        name = "grads" if verb == "apply_gradients" else "values"
        checks.check_part_rows(where, name, rows, (len(ids), dim))


def _where(verb: str, slot: str) -> tuple[str, str]:
    return f"[MergedMultiTypeHashTable.{verb}]", f"(slot {slot!r})"
