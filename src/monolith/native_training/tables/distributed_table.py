"""One table over parameter servers, with the calls of the reference system."""

import threading
from collections.abc import Sequence

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from monolith.cluster.servers import Servers, current_servers
from monolith.cluster.sharded_table import ShardedTable
from monolith.native_training.tables.updates import Completion, RunningUpdates
from monolith.observe.metrics import MetricsSink
from monolith.table import _checks as checks
from monolith.table.calls import Clock, wall_clock
from monolith.table.config import TableConfig
from monolith.table.routing import FloorModRouting

_APPLY = "[DistributedHashTable.apply_gradients]"


class DistributedHashTable:
    """A table with a shard on every server; an id is on server id % number of servers.

    Any two calls may run at once from any two threads. What is missing reads as in `Table.lookup`.

    Args:
        config: what the table is; its learning rates are those of this object's updates.
        servers: hold the shards, which stay when this object is gone; those of the run if None.
        clock: gives the time of an update.
        sink: takes the lookup times of each server (`cluster/timed_transport.py`).
        model_name: a tag of these times.

    Example:
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Segment, Zeros
        >>> from monolith.cluster import LocalServers
        >>> with LocalServers(2) as servers:
        ...     config = TableConfig("user", Segment(1, SGD(1.0), Zeros()))
        ...     table = DistributedHashTable(config, servers)
        ...     rows = table.lookup(torch.tensor([5, 5, 6]))
        ...     rows.sum().backward()
        ...     table.apply_gradients([(rows.grad, rows)]).as_op().wait()
        ...     print(table.lookup(torch.tensor([5, 6])).tolist())
        [[-2.0], [-1.0]]
    """

    def __init__(
        self,
        config: TableConfig,
        servers: Servers | None = None,
        *,
        clock: Clock = wall_clock,
        sink: MetricsSink | None = None,
        model_name: str = "",
    ) -> None:
        servers = current_servers() if servers is None else servers
        self._table = servers.table(config, FloorModRouting(len(servers)), clock)
        self._table.measure_lookups(sink, model_name)
        self._ids = WeakTensorKeyDictionary()
        self._updates = RunningUpdates(config.name)
        self._num_applied = 0
        self._lock = threading.Lock()

    @property
    def table(self) -> ShardedTable:
        """The same rows with all the verbs of a table."""
        return self._table

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the ids, which the result's gradients will be applied to; nothing is stored.

        Args:
            ids: int64 (n,); each of equal ones is asked for once.

        Returns:
            float32 (n, dim), a leaf that takes gradients.
        """
        self._table._check_keys("lookup", ids)
        unique, places = torch.unique(ids, return_inverse=True)
        rows = self._table.lookup(unique)[places].requires_grad_()
        self._ids[rows] = ids.clone()
        return rows

    def assign(self, ids: torch.Tensor, values: torch.Tensor) -> "DistributedHashTable":
        """Set the rows of the ids; of equal ones the last wins. Returns this table."""
        with self._updates.update():
            self._table.assign(ids, values)
        return self

    def assign_add(self, ids: torch.Tensor, values: torch.Tensor) -> "DistributedHashTable":
        """Add to the rows of the ids; values of equal ones are summed. Returns this table."""
        with self._updates.update():
            self._table.assign_add(ids, values)
        return self

    def apply_gradients(
        self,
        grads_and_rows: Sequence[tuple[torch.Tensor, torch.Tensor]],
        *,
        step: int = 0,
        now: int | None = None,
    ) -> "DistributedHashTable":
        """One optimizer step per distinct id, on the sum of its gradients. Returns this table.

        Args:
            grads_and_rows: pairs of a gradient and a result of `lookup`, all for one step.
            step: training step.
            now: time of the update in seconds.
        """
        ids, grads = [], []
        for number, (grad, rows) in enumerate(grads_and_rows):
            ids.append(self._ids_of(rows, number))
            which = f"(pair {number}, table {self._table.name!r})"
            if grad is None:
                raise TypeError(
                    f"{_APPLY} expected a gradient, got None {which}; call backward() before, or "
                    "leave the pair out"
                )
            shape = (len(ids[-1]), self._table.dim)
            grads.append(checks.check_part_rows((_APPLY, which), "grads", grad, shape))
        if ids:
            with self._updates.update():
                applied = self._table.apply_gradients(
                    torch.cat(ids), torch.cat(grads), step=step, now=now
                )
                with self._lock:
                    self._num_applied += applied.num_applied
        return self

    def _ids_of(self, rows: object, number: int) -> torch.Tensor:
        """The ids whose lookup gave the rows of a pair."""
        which = f"(pair {number}, table {self._table.name!r})"
        if not isinstance(rows, torch.Tensor):
            raise TypeError(
                f"{_APPLY} expected rows as a result of this table's lookup, got "
                f"{type(rows).__name__} {which}"
            )
        if rows not in self._ids:
            raise ValueError(
                f"{_APPLY} expected results of this table's lookup, got a tensor of shape "
                f"{tuple(rows.shape)} that is none {which}"
            )
        ids: torch.Tensor = self._ids[rows]
        return ids

    def as_op(self) -> Completion:
        """A handle that is done when the updates that run now have ended on every server."""
        return self._updates.completion()

    def stats(self) -> dict[str, int]:
        """Counters of the shards together, and `num_applied`, the steps that this object made."""
        return {**self._table.stats(), "num_applied": self._num_applied}
