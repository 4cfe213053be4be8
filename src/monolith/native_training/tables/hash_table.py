"""One table of this process, with the calls of the reference system."""

from typing import TYPE_CHECKING

import torch

from monolith.native_training.tables.entry_config import HashTableConfigInstance
from monolith.native_training.tables.sharded_group import (
    restore_names_of,
    sweeps_of,
    table_configs,
)
from monolith.native_training.tables.updates import Completion, RunningUpdates
from monolith.table import Table
from monolith.table.calls import Clock, wall_clock
from monolith.table.config import TableConfig
from monolith.table.rows import Entries
from monolith.table.sweep import TableSweep

if TYPE_CHECKING:
    from typing_extensions import Self


class HashTable:
    """A `Table` whose writes return it, so that calls can be chained; any two may run at once.

    Args:
        name: of the table.
        config: what the table is.
        clock: gives the time of an update without one, and that of sweeps.

    Attributes:
        table: the same rows with all the verbs of a table; closing it ends the sweep.
        sweep: evicts expired rows where the config asks for it.

    Example:
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Segment, Zeros
        >>> table = HashTable("user", TableConfig("user", Segment(1, SGD(0.5), Zeros())))
        >>> ids = torch.tensor([7, 8, 7])
        >>> table.assign_add(ids, torch.ones(3, 1)).apply_gradients(ids, torch.ones(3, 1), 0).size()
        2
        >>> table.lookup(ids)
        tensor([[1.0000],
                [0.5000],
                [1.0000]])
    """

    def __init__(
        self,
        name: str,
        config: HashTableConfigInstance | TableConfig,
        *,
        clock: Clock = wall_clock,
    ) -> None:
        self.table = Table(*table_configs("HashTable", {name: config}), clock=clock)
        self._updates = RunningUpdates(name)
        self.sweep: TableSweep | None = None
        for seconds in sweeps_of({name: config}).values():
            self.sweep = TableSweep(self.table, seconds, clock)
        self.table.restore_names = restore_names_of({name: config}).get(name, ())

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the ids, float32 (n, dim); nothing is stored."""
        return self.table.lookup(ids)

    def lookup_entry(self, ids: torch.Tensor) -> Entries:
        """Whole rows of the ids, and which of them exist."""
        return self.table.lookup_entry(ids)

    def assign(self, ids: torch.Tensor, values: torch.Tensor, req_time: int = 0) -> "Self":
        """Set rows at a time in seconds; of equal ids the last wins."""
        with self._updates.update():
            self.table.assign(ids, values, now=req_time)
        return self

    def assign_add(self, ids: torch.Tensor, values: torch.Tensor, req_time: int = 0) -> "Self":
        """Add to rows at a time in seconds; values of equal ids are summed."""
        with self._updates.update():
            self.table.assign_add(ids, values, now=req_time)
        return self

    def apply_gradients(
        self, ids: torch.Tensor, grads: torch.Tensor, global_step: int, req_time: int = 0
    ) -> "Self":
        """One optimizer step per distinct id, on the sum of its gradients."""
        with self._updates.update():
            self.table.apply_gradients(ids, grads, step=global_step, now=req_time)
        return self

    def as_op(self) -> Completion:
        """Return a handle that is done when the updates that run now have ended."""
        return self._updates.completion()

    def close(self) -> None:
        """Free the table and end its sweep. Closing twice is fine."""
        self.table.close()

    def size(self) -> int:
        """Number of rows."""
        return len(self.table)
