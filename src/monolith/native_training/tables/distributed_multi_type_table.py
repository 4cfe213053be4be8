"""Many tables over parameter servers, with the calls of the reference system."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from monolith.cluster.servers import Servers, current_servers
from monolith.cluster.sharded_table import ShardedTable
from monolith.native_training.ops.split import split_by_indices
from monolith.native_training.tables.entry_config import HashTableConfigInstance
from monolith.native_training.tables.key_routes import PackedRoutes, RawRoutes
from monolith.native_training.tables.sharded_group import connect
from monolith.native_training.tables.updates import AppliedUpdate, Completion
from monolith.observe.metrics import MetricsSink
from monolith.ops import Ragged
from monolith.table import _checks as checks
from monolith.table.calls import Clock, wall_clock
from monolith.table.config import TableConfig

_OWNER = "DistributedMultiTypeHashTable"


class DistributedMultiTypeHashTable:
    """Tables by slot, each with a shard on every server; an id is on server id % number of servers.

    A call is one request to each server for all slots. Keys of slots never meet. Any two calls may
    run at once from any two threads. What is missing reads as in `Table.lookup`.

    Raw, ids travel as one ragged batch and rows as one flat tensor. Otherwise each slot's ids are
    split by themselves, and packed for each server; the results are the same. Rows do not
    depend on the number of servers.

    Args:
        slot_to_config: what the table of each slot is; its learning rates are those of this
            object's updates.
        servers: hold the shards, which stay when this object is gone; those of the run if None.
        is_raw: use the raw path.
        transfer_float16: rows of lookups and gradients travel as float16, and become float32 again
            before they touch a table; it forces the path that is not raw.
        clock: gives the time of an update.
        sink: takes the lookup times of each server (`cluster/timed_transport.py`).
        model_name: a tag of these times.

    Example:
        >>> from monolith.table.optimizers import SGD
        >>> from monolith.table import Segment, Zeros
        >>> configs = {name: TableConfig(name, Segment(1, SGD(1.0), Zeros())) for name in "ab"}
        >>> from monolith.cluster import LocalServers
        >>> with LocalServers(2) as servers:
        ...     table = DistributedMultiTypeHashTable(configs, servers)
        ...     applied = table.apply_gradients({"a": (torch.tensor([7, 7]), torch.ones(2, 1))})
        ...     rows = table.lookup({"a": torch.tensor([7]), "b": torch.tensor([7])})
        ...     print(applied.num_applied, rows)
        1 {'a': tensor([[-2.]]), 'b': tensor([[0.]])}
    """

    def __init__(
        self,
        slot_to_config: Mapping[str, HashTableConfigInstance | TableConfig],
        servers: Servers | None = None,
        *,
        is_raw: bool = True,
        transfer_float16: bool = False,
        clock: Clock = wall_clock,
        sink: MetricsSink | None = None,
        model_name: str = "",
    ) -> None:
        self.is_raw = is_raw and not transfer_float16
        self._group = connect(
            slot_to_config,
            current_servers() if servers is None else servers,
            owner=_OWNER,
            transfer_float16=transfer_float16,
            clock=clock,
            sink=sink,
            model_name=model_name,
        )
        self._routes = (RawRoutes if self.is_raw else PackedRoutes)(self._group)

    @property
    def tables(self) -> dict[str, ShardedTable]:
        """The same rows with all the verbs of a table, by the name of the table; for saves too.

        A cut of one of them is a moment of this object's calls only where none of them runs.
        """
        return dict(self._group.tables)

    def lookup(
        self, slot_to_id: Mapping[str, torch.Tensor], *, step: int = 0
    ) -> dict[str, torch.Tensor]:
        """Rows of the ids, of the slots that are asked for; nothing is stored.

        Args:
            slot_to_id: int64 (n,) each; each of equal ids of a slot is asked for once.
            step: training step, for a `OneBit` view.

        Returns:
            float32 (n, dim) each.
        """
        for slot, ids in slot_to_id.items():
            self._group.order.check_ids("lookup", slot, ids)
        rows = self._routes.lookup(slot_to_id, step)
        return {slot: rows[slot] for slot in slot_to_id}

    def raw_lookup(self, keys: Ragged, *, step: int = 0) -> torch.Tensor:
        """`lookup` without a cost per slot: a row of keys for each slot, in the order of names.

        Returns:
            float32 (num_floats,), the rows one after another.
        """
        return self._raw("raw_lookup").lookup_flat(self._checked("raw_lookup", keys), step)

    def assign(
        self,
        slot_to_id_and_value: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
        *,
        now: int | None = None,
    ) -> "DistributedMultiTypeHashTable":
        """Set rows; of equal ids of a slot the last wins. Returns this table."""
        return self._write("assign", slot_to_id_and_value, now)

    def assign_add(
        self,
        slot_to_id_and_value: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
        *,
        now: int | None = None,
    ) -> "DistributedMultiTypeHashTable":
        """Add to rows; values of equal ids of a slot are summed. Returns this table."""
        return self._write("assign_add", slot_to_id_and_value, now)

    def _write(
        self,
        verb: str,
        slot_to_id_and_value: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
        now: int | None,
    ) -> "DistributedMultiTypeHashTable":
        for slot, (ids, values) in slot_to_id_and_value.items():
            self._group.order.check_rows(verb, slot, ids, values)
        parts, rows = self._routes.split(slot_to_id_and_value)
        self._group.write(verb, parts, rows, now)
        return self

    def apply_gradients(
        self,
        slot_to_id_and_grad: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
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
            Counts over all slots and servers; `as_op()` gives a handle to wait for updates.
        """
        for slot, (ids, values) in slot_to_id_and_grad.items():
            self._group.order.check_rows("apply_gradients", slot, ids, values)
        keys, grads = self._routes.joined(slot_to_id_and_grad)
        return self._apply(keys, grads, step=step, learning_rates=learning_rates, now=now)

    def _apply(self, keys: Ragged, grads: torch.Tensor, **options: Any) -> AppliedUpdate:
        return self._group.apply_all(keys, grads, self._routes.split_flat, **options)

    def raw_apply_gradients(
        self,
        keys: Ragged,
        grads: torch.Tensor,
        *,
        step: int = 0,
        learning_rates: Mapping[str, Sequence[float]] | None = None,
        now: int | None = None,
    ) -> AppliedUpdate:
        """`apply_gradients` without a cost per slot. grads: float32 (num_floats,)."""
        self._raw("raw_apply_gradients")
        where = (f"[{_OWNER}.raw_apply_gradients]", "")
        checks.check_tensor(where, "grads", grads, torch.float32, 1)
        expected = self._group.num_floats(self._checked("raw_apply_gradients", keys))
        if len(grads) != expected:
            raise ValueError(
                f"{where[0]} expected grads with {expected} numbers, the rows of all keys, got "
                f"{len(grads)}"
            )
        return self._apply(keys, grads, step=step, learning_rates=learning_rates, now=now)

    def reinitialize(self, slot: str, ids: torch.Tensor, *, now: int | None = None) -> torch.Tensor:
        """Give the ids of a slot fresh rows; only the raw path has it.

        Returns:
            int32 (n,), server by server: 1 where the id existed, 0 where it was created, -1 for
            every id where there is no such slot.
        """
        self._raw("reinitialize")
        where = (f"[{_OWNER}.reinitialize]", f"(slot {slot!r})")
        checks.check_tensor(where, "ids", ids, torch.int64, 1)
        parts = split_by_indices(self._group.routing.shard_of(ids), ids, self._group.num_shards)
        return torch.cat(self._group.reinitialize(slot, parts, now))

    def as_op(self) -> Completion:
        """A handle that is done when the updates that run now have ended on every server."""
        return self._group.updates.completion()

    def get_table_dim_sizes(self) -> list[int]:
        """Width of the rows of each slot, in the order of their names."""
        return self._group.order.widths.tolist()

    def _raw(self, verb: str) -> RawRoutes:
        if not isinstance(self._routes, RawRoutes):
            raise NotImplementedError(
                f"[{_OWNER}.{verb}] expected the raw path, got the packed one; make the table with "
                "is_raw=True and transfer_float16=False"
            )
        return self._routes

    def _checked(self, verb: str, keys: Ragged) -> Ragged:
        where = f"[{_OWNER}.{verb}]"
        if not isinstance(keys, Ragged):
            raise TypeError(f"{where} expected keys as a Ragged, got {type(keys).__name__}")
        checks.check_tensor((where, ""), "keys", keys.values, torch.int64, 1)
        if keys.num_rows != len(self._group.configs):
            raise ValueError(
                f"{where} expected keys with {len(self._group.configs)} rows, one per slot, got "
                f"{keys.num_rows}"
            )
        return keys
