"""What takes part in saves and restores: tables, and guards around a save."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from monolith.checkpoint.load import open_checkpoint
from monolith.cluster.servers import LocalServers
from monolith.cluster.sharded_table import ShardedTable
from monolith.native_training.saver.ps_monitor import PsMonitor
from monolith.table.base import BaseTable
from monolith.train.driver import Run

_log = logging.getLogger(__name__)


class SaverListener:
    """Is told of saves; every method does nothing until it is overridden.

    Attributes:
        tables: go into the checkpoint, in the files of the same cut.
    """

    @property
    def tables(self) -> Sequence[BaseTable]:
        """Tables of the checkpoint."""
        return ()

    def begin(self) -> None:
        """Called once, before the run starts."""

    def before_save(self, run: Run, global_step: int) -> None:
        """Called before a save."""

    def after_save(self, run: Run, global_step: int) -> bool | None:
        """Called after a save that went well; true ends the run."""

    def end(self, run: Run, global_step: int) -> None:
        """Called once, when the run ends normally."""


class RestorerListener:
    """Is told of restores; every method does nothing until it is overridden."""

    def before_restore(self, run: Run, prefix: str) -> None:
        """Called before the `after_restore` of any listener."""

    def after_restore(self, run: Run, prefix: str) -> None:
        """Called after the `before_restore` of all listeners."""


class _OneTable(Protocol):
    @property
    def table(self) -> Any: ...


class _SeveralTables(Protocol):
    @property
    def tables(self) -> Mapping[str, BaseTable]: ...


Tables = BaseTable | _OneTable | _SeveralTables
"""A table, or an object with one as `table` or with several by name as `tables`."""


class HashTableCheckpointSaverListener(SaverListener):
    """Puts tables into checkpoints, with what their admission remembers.

    Args:
        tables: tables, or objects of the reference system's classes with tables, such as
            `HashTable`, `MultiHashTable` or `PartitionedHashTable`; one, or several. Of
            `LocalServers`, the tables that belong to one server alone; a table that is spread over
            servers is given itself.

    Raises:
        TypeError: an object has no tables.
    """

    def __init__(self, tables: "LocalServers | Tables | Iterable[Tables]") -> None:
        self._tables = _listed(type(self).__name__, tables)

    @property
    def tables(self) -> Sequence[BaseTable]:
        """All tables, by device."""
        return [table for _, tables in _by_device(self._tables) for table in tables]


class HashTableCheckpointRestorerListener(RestorerListener):
    """Gives tables the content of a checkpoint; what they held is gone.

    Args:
        tables: as `HashTableCheckpointSaverListener` takes them.
        ps_monitor: tables of servers that it knows as initialised stay as they are, and so do the
            shards that they have of a table.
    """

    def __init__(
        self,
        tables: "LocalServers | Tables | Iterable[Tables]",
        ps_monitor: PsMonitor | None = None,
    ) -> None:
        self._tables = _listed(type(self).__name__, tables)
        self._ps_monitor = ps_monitor

    def before_restore(self, run: Run, prefix: str) -> None:
        """Restore."""
        chosen: dict[tuple[int, ...] | None, list[BaseTable]] = {}
        for device, tables in _by_device(self._tables):
            for table in tables:
                shards = self._new_shards(run, device, table)
                if shards != ():
                    chosen.setdefault(shards, []).append(table)
        for shards, some in chosen.items():
            open_checkpoint(prefix).restore_tables(some, shards=shards)

    def _new_shards(self, run: Run, device: str, table: BaseTable) -> tuple[int, ...] | None:
        """The shards that are restored; None: the whole table."""
        monitor = self._ps_monitor
        if monitor is None:
            return None
        devices = table.devices if isinstance(table, ShardedTable) else [device]
        is_new = [monitor.is_ps_uninitialized(run, each) for each in devices]
        if all(is_new):
            return None
        return tuple(number for number, is_wanted in enumerate(is_new) if is_wanted)


def _listed(
    owner: str, tables: "LocalServers | Tables | Iterable[Tables]"
) -> LocalServers | list[BaseTable]:
    if isinstance(tables, LocalServers):
        return tables
    listed = list(tables) if isinstance(tables, Iterable) else [tables]
    return [table for item in listed for table in _tables_of(owner, item)]


def _tables_of(owner: str, item: Any) -> list[BaseTable]:
    if isinstance(item, BaseTable):
        return [item]
    if isinstance(tables := getattr(item, "tables", None), Mapping):
        return list(tables.values())
    if hasattr(item, "table"):
        return _tables_of(owner, item.table)
    raise TypeError(f"[{owner}] expected tables, got {type(item).__name__}")


def _by_device(
    tables: "LocalServers | Sequence[BaseTable]",
) -> list[tuple[str, Sequence[BaseTable]]]:
    if not isinstance(tables, LocalServers):
        return [("", tables)]
    servers = [tables[index] for index in range(len(tables))]
    if shared := sorted({name for server in servers for name in server.shared_table_names}):
        _log.warning(
            "tables %s are spread over the servers and not taken from them; give them to a "
            "listener of their own",
            shared,
        )
    return [(server.label, server.own_tables()) for server in servers]
