"""`Snapshot`: a table at one moment, read in chunks while writers continue."""

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from monolith.errors import FailedPreconditionError
from monolith.table import _checks as checks
from monolith.table.config import NUM_PARTITIONS, TableConfig
from monolith.table.initializers import key_hash, partitions_of
from monolith.table.rows import Entries, RowMemory, Rows, Touched

if TYPE_CHECKING:
    from typing_extensions import Self

    from monolith.table.disk.remote.remote_save import RemoteFiles


ExportChunk = Callable[[int, int, int], Rows]
"""(first, last, limit) -> at most `limit` rows with a hash in [first, last], ascending."""


def export_chunks(
    config: TableConfig,
    partitions: Iterable[int] | None,
    chunk_rows: int,
    after: int | None,
    export_chunk: ExportChunk,
) -> Iterator[Rows]:
    """Yield the rows of the partitions after the key `after`; the arguments are checked at once."""
    chunk_rows = checks.check_integer(config, "export", "chunk_rows", chunk_rows)
    if chunk_rows < 1:
        raise ValueError(
            f"[Table.export] expected chunk_rows >= 1, got {chunk_rows} (table {config.name!r})"
        )
    ranges = checks.hash_ranges(config, partitions)
    if after is not None:
        start = key_hash(checks.check_key(config, "export", "after", after)) + 1
        ranges = [(max(first, start), last) for first, last in ranges if last >= start]
    return _chunks(ranges, chunk_rows, export_chunk)


def _chunks(
    ranges: list[tuple[int, int]], chunk_rows: int, export_chunk: ExportChunk
) -> Iterator[Rows]:
    for first, last in ranges:
        start = first
        while start <= last:
            rows = export_chunk(start, last, chunk_rows)
            if not len(rows):
                break
            yield rows
            start = key_hash(int(rows.keys[-1])) + 1


MAX_CUTS = 4
"""Largest number of open cuts of a table."""


class CutStorage(ABC):
    """Cut of a table: the methods that a table implements, with checked arguments.

    Attributes:
        num_rows: number of rows at the cut.
        num_update_calls: apply-call number at the cut.
        latest_time: largest update time of the table at the cut.
        num_recorded: number of events of the table's record at the cut.
    """

    num_rows: int
    num_update_calls: int
    latest_time: int
    num_recorded: int

    @abstractmethod
    def export_chunk(
        self, first: int, last: int, limit: int, memory: RowMemory | None = None
    ) -> Rows:
        """Return at most `limit` rows of the cut, the first with a hash in [first, last].

        The rows may use `memory`, until the next rows overwrite them.
        """

    @abstractmethod
    def changes(self) -> tuple[bool, torch.Tensor, torch.Tensor]:
        """Return the changes up to the cut since the previous read of its cursor.

        A second call may find less of the log, and is full then.
        """

    @abstractmethod
    def lookup_entry(self, keys: torch.Tensor, memory: RowMemory | None = None) -> Entries:
        """Return the rows of the keys at the cut; they may use `memory`."""

    @abstractmethod
    def lookup(self, keys: torch.Tensor, step: int) -> torch.Tensor:
        """Return the weights of the keys at the cut, float32 (n, dim); zeros without a row."""

    @abstractmethod
    def export_candidates(self, partitions: list[int]) -> dict[str, torch.Tensor]:
        """Return the candidates of admission at the cut."""

    @abstractmethod
    def release(self, partitions: list[int]) -> None:
        """Free the memory of these partitions."""

    @abstractmethod
    def close(self, is_read: bool) -> None:
        """Free all memory of the cut; unless `is_read`, leave its cursor behind.

        A cursor that was left behind has a full next read. A dropped cursor stays dropped.
        """

    def remote_files(self) -> "RemoteFiles | None":
        """Return the writers of the files of the cut, if other processes hold its rows."""
        return None


class Snapshot:
    """All rows of a table at the moment of a cut. Close it: writers keep old rows for it.

    Args:
        config: settings of the table.
        storage: source of the rows.
        cursor: cursor of the table that the cut has read; None if there is none.
    """

    def __init__(self, config: TableConfig, storage: CutStorage, cursor: str | None = None) -> None:
        self.config = config
        self.cursor = cursor
        self._storage = storage
        self._touched: Touched | None = None
        self._read_lock = threading.Lock()
        self._is_closed = False
        self._released: set[int] = set()

    @property
    def num_update_calls(self) -> int:
        """Apply-call number at the cut."""
        return self._storage.num_update_calls

    @property
    def latest_time(self) -> int:
        """Largest update time of the table at the cut."""
        return self._storage.latest_time

    @property
    def num_recorded(self) -> int:
        """Number of events of the table's record at the cut (`Record.replay`)."""
        return self._storage.num_recorded

    def __len__(self) -> int:
        return self._storage.num_rows

    def export(
        self,
        partitions: Iterable[int] | None = None,
        chunk_rows: int = 65536,
        after: int | None = None,
        *,
        memory: RowMemory | None = None,
    ) -> Iterator[Rows]:
        """Yield the rows at the cut in ascending order of their hash; see `Table.export`.

        With `memory`, a chunk may use it until the next chunk is requested, which is faster than
        new memory for each chunk.
        """
        self._check_open("export")
        numbers = None if partitions is None else list(partitions)
        self._check_kept("export", checks.check_partitions(self.config, "export", numbers))
        chunk = functools.partial(self._chunk, memory)
        return export_chunks(self.config, numbers, chunk_rows, after, chunk)

    def _chunk(self, memory: RowMemory | None, first: int, last: int, limit: int) -> Rows:
        partitions = range(first >> 52, (last >> 52) + 1)
        self._check_open("export")
        self._check_kept("export", partitions)
        rows = self._storage.export_chunk(first, last, limit, memory)
        self._check_open("export")  # a closed cut would give rows of a later moment
        self._check_kept("export", partitions)
        return rows

    def changes(self) -> Touched:
        """Return the keys that changed between the cursor's previous read and the cut.

        `keys` have a row at the cut, `tombstones` have none: `lookup_entry(changes.keys)` gives the
        rows. A second call returns the same. The changes are full in the cases of `Table.changes`,
        also if the log exceeds its bound before this call. A cut that is closed before this call
        leaves the cursor behind: its next read is full. Safe with every verb.

        Raises:
            FailedPreconditionError: the cut was opened without a cursor, or partitions were
                released before the first call.
        """
        self._check_open("changes")
        if self.cursor is None:
            raise FailedPreconditionError(
                "[Snapshot.changes] expected a cut with a cursor, got one without; open it with "
                f"cut(cursor=...) (table {self.config.name!r})"
            )
        with self._read_lock:
            touched = self._touched
            if touched is None:
                self._check_kept("changes", range(NUM_PARTITIONS))
                touched = Touched(*self._storage.changes())
                self._check_open("changes")
                self._check_kept("changes", range(NUM_PARTITIONS))
                self._touched = touched
        return touched

    def lookup_entry(self, keys: torch.Tensor, *, memory: RowMemory | None = None) -> Entries:
        """Return whole rows of the keys at the cut: weights, optimizer state, time.

        Keys in ascending order of their hash, such as those of `changes`, are fastest. Safe with
        every verb.

        Args:
            keys: keys, int64 (n,).
            memory: memory for the rows, until its next use overwrites them; faster than new memory.

        Returns:
            One entry per key; keys without a row at the cut are marked as absent.
        """
        self._check_open("lookup_entry")
        checks.check_keys(self.config, "lookup_entry", keys)
        self._check_keys_kept("lookup_entry", keys)
        entries = self._storage.lookup_entry(keys, memory)
        self._check_open("lookup_entry")  # a closed cut would give rows of a later moment
        self._check_keys_kept("lookup_entry", keys)
        return entries

    def lookup(self, keys: torch.Tensor, *, step: int | None = None) -> torch.Tensor:
        """Return the weights of the keys at the cut, as `Table.lookup` read them at that moment.

        A key without a row at the cut reads zeros; expired rows that are not evicted read as they
        are. Keys may repeat, in any order. Safe with every verb.

        Args:
            keys: keys, int64 (n,).
            step: training step, for a `OneBit` view; None means `num_update_calls` of the cut, the
                step at which `monolith.features` reads a table.

        Returns:
            float32 (n, dim).

        Raises:
            FailedPreconditionError: the cut is closed, or a partition of a key was released.
            AbortedError: a server of the table came back without the cut.

        Example:
            >>> from monolith.table import Segment, Table, TableConfig
            >>> table = Table(TableConfig("user", Segment(1)))
            >>> table.assign(torch.tensor([7]), torch.tensor([[1.0]]))
            >>> with table.cut() as snapshot:
            ...     table.assign(torch.tensor([7]), torch.tensor([[2.0]]))
            ...     snapshot.lookup(torch.tensor([8, 7])).tolist()
            [[0.0], [1.0]]
        """
        self._check_open("lookup")
        checks.check_keys(self.config, "lookup", keys)
        step = self.num_update_calls if step is None else step
        step = checks.check_step(self.config, "lookup", step)
        self._check_keys_kept("lookup", keys)
        weights = self._storage.lookup(keys, step)
        self._check_open("lookup")  # a closed cut would give rows of a later moment
        self._check_keys_kept("lookup", keys)
        return weights

    def export_candidates(self, partitions: Iterable[int] | None = None) -> dict[str, torch.Tensor]:
        """Return the candidates of admission at the cut; see `Table.export_candidates`."""
        self._check_open("export_candidates")
        numbers = checks.check_partitions(self.config, "export_candidates", partitions)
        self._check_kept("export_candidates", numbers)
        columns = self._storage.export_candidates(numbers)
        self._check_open("export_candidates")
        self._check_kept("export_candidates", numbers)
        return columns

    def remote_files(self) -> "RemoteFiles | None":
        """Return the writers of files of the cut, if they are not in this process; see `disk`."""
        self._check_open("remote_files")
        return self._storage.remote_files()

    def release(self, partitions: Iterable[int]) -> None:
        """Free the memory of partitions that the caller does not read any more."""
        self._check_open("release")
        numbers = checks.check_partitions(self.config, "release", partitions)
        self._released.update(numbers)
        self._storage.release(numbers)

    def close(self, *, is_read: bool = True) -> None:
        """Close the cut. A second call has no effect.

        If the cut has a cursor and its `changes` were not read, the cursor's next read is full.

        Args:
            is_read: False means that the changes did not arrive where they were needed, such as in
                a file: the cursor's next read is full then, too.
        """
        if not self._is_closed:
            self._is_closed = True
            self._storage.close(is_read and self._touched is not None)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A cut without a reader must not make writers keep rows.
        if hasattr(self, "_is_closed"):
            self.close()

    def _check_open(self, verb: str) -> None:
        if self._is_closed:
            raise FailedPreconditionError(
                f"[Snapshot.{verb}] expected an open cut, got a closed one "
                f"(table {self.config.name!r})"
            )

    def _check_keys_kept(self, verb: str, keys: torch.Tensor) -> None:
        if self._released:
            self._check_kept(verb, set(partitions_of(keys.numpy()).tolist()))

    def _check_kept(self, verb: str, partitions: Iterable[int]) -> None:
        released = self._released.intersection(partitions) if self._released else None
        if released:
            raise FailedPreconditionError(
                f"[Snapshot.{verb}] expected partitions that were not released, got "
                f"{min(released)} (table {self.config.name!r})"
            )
