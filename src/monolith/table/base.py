"""`BaseTable`: the verbs of a table, their meaning and their checks.

A subclass stores rows: it implements `TableStorage` (`calls.py`) and may rely on checked arguments.
`reference/table.py` is the shortest subclass and defines the meaning of each verb.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from monolith.errors import FailedPreconditionError
from monolith.table import _checks as checks
from monolith.table import codecs as serving
from monolith.table.bags import BagVerbs
from monolith.table.calls import TableCalls
from monolith.table.eviction import RetentionVerbs
from monolith.table.rows import Applied, Entries, Rows, Touched
from monolith.table.snapshot import MAX_CUTS, Snapshot, export_chunks


class ReadVerbs(TableCalls):
    """Verbs that read rows; see `BaseTable` for all verbs."""

    def lookup(
        self,
        keys: torch.Tensor,
        *,
        missing: str = "initial",
        step: int = 0,
        num_threads: int | None = None,
    ) -> torch.Tensor:
        """Return the weights of the keys. Stores nothing and takes no lock. Safe with every verb.

        Args:
            keys: keys, int64 (n,).
            missing: value of a missing key: "initial", the row that the key would get, or "zeros".
                A serving table always returns zeros, and so does a key that needs admission.
            step: training step, for a `OneBit` view.
            num_threads: largest number of threads, torch.get_num_threads() if None; a call with few
                keys uses fewer threads.

        Returns:
            float32 (n, dim).
        """
        self._check_keys("lookup", keys)
        initial = self._check_missing("lookup", missing)
        step = checks.check_step(self.config, "lookup", step)
        threads = checks.check_threads(self.config, "lookup", num_threads, keys.numel())
        return self._lookup(keys, initial, step, threads)

    def contains(self, keys: torch.Tensor) -> torch.Tensor:
        """Return whether each key has a row. Safe with every verb.

        Returns:
            bool (n,).
        """
        self._check_keys("contains", keys)
        return self._contains(keys)

    def lookup_entry(self, keys: torch.Tensor) -> Entries:
        """Return whole rows of the keys: weights, optimizer state, time. Safe with every verb.

        Returns:
            One entry per key; missing keys are marked as absent.
        """
        self._check_keys("lookup_entry", keys)
        return self._lookup_entry(keys)

    def export(
        self,
        partitions: Iterable[int] | None = None,
        chunk_rows: int = 65536,
        after: int | None = None,
    ) -> Iterator[Rows]:
        """Yield all rows in ascending order of their hash, in chunks. Safe with every verb.

        A row that changes meanwhile is exported as it was at one moment.

        Args:
            partitions: partitions to export; None means all.
            chunk_rows: largest number of rows of a chunk.
            after: key after which to continue, the last key of an earlier chunk.
        """
        self._check_open("export")
        return export_chunks(self.config, partitions, chunk_rows, after, self._open_chunk)

    def _open_chunk(self, first: int, last: int, limit: int) -> Rows:
        self._check_open("export")
        return self._export_chunk(first, last, limit)

    # Facts

    def __len__(self) -> int:
        self._check_open("len")
        return self._num_rows()

    def memory_report(self) -> dict[str, int]:
        """Return the bytes of rows, index and candidates, and `total_bytes`. Safe with every verb.

        Not in the total: `cut_bytes`, kept by open cuts; `log_bytes`, of the touched log; and
        `spare_log_bytes`, reserved for the next entries of the log.
        """
        self._check_open("memory_report")
        return self._memory_report()

    @property
    def num_update_calls(self) -> int:
        """Number of calls of assign, assign_add and apply_gradients so far: the seed of rounding.

        This is the apply-call number of files and replay records; a restore sets it.
        """
        self._check_open("num_update_calls")
        return self._update_calls()

    @num_update_calls.setter
    def num_update_calls(self, number: int) -> None:
        self._check_open("num_update_calls")
        if not 0 <= number < 1 << 63:
            raise ValueError(
                f"[Table.num_update_calls] expected a number in [0, 2**63), got {number} "
                f"(table {self.name!r})"
            )
        self._set_update_calls(number)

    def stats(self) -> dict[str, int]:
        """Return counters since construction (names: docs/tables.md). Safe with every verb."""
        self._check_open("stats")
        return self._stats()


class ChangeVerbs(TableCalls):
    """Verbs that let readers follow the changes of a table; see `BaseTable` for all verbs."""

    def cut(self, *, cursor: str | None = None) -> Snapshot:
        """Return a snapshot of all rows, to be read while writers continue. Safe with every verb.

        Every writing call is wholly before or wholly after the cut: the cut waits for running
        calls. A later writer copies each row that it changes first, until the cut is closed. At
        most four cuts are open at once; `clear` is refused meanwhile, and so is a cut while
        `restore_tables` fills the table.

        With a cursor, the moment of the cut is also a read of the cursor: `Snapshot.changes`
        returns what changed since its previous read. A cut that fails half-way drops the cursor, so
        that no key is lost.

        Args:
            cursor: name of a reader of changes; a new name starts a new cursor.

        Example:
            >>> import torch
            >>> from monolith.table import Segment, Table, TableConfig
            >>> table = Table(TableConfig("user", Segment(1)))
            >>> table.assign(torch.tensor([7]), torch.tensor([[1.0]]))
            >>> with table.cut() as snapshot:
            ...     table.assign(torch.tensor([7]), torch.tensor([[2.0]]))
            ...     print([rows.columns["weight/0"].item() for rows in snapshot.export()])
            [1.0]
        """
        self._check_open("cut")
        if cursor is not None:
            self._check_cursor("cut", cursor)
        with self._cut_lock:
            self._check_not_loading("[Table.cut]")  # a partly filled table has no valid state
            with self._dropped_on_error(cursor):
                storage = self._open_cut(cursor)
                snapshot = None if storage is None else Snapshot(self.config, storage, cursor)
        if snapshot is None:
            raise FailedPreconditionError(
                f"[Table.cut] expected at most {MAX_CUTS} open cuts, got one more; close one "
                f"(table {self.name!r})"
            )
        return snapshot

    def changes(self, cursor: str) -> Touched:
        """Return the keys that changed since the cursor's last read. Safe with every verb.

        The first read of a cursor is full. So is a read after `clear`, after a load, and after the
        log grew beyond its bound (`changes_bytes`). A read that fails drops the cursor, so that no
        key is lost. A read waits for running writers.

        Args:
            cursor: name of the reader; a new name starts a new cursor.
        """
        self._check_open("changes")
        self._check_cursor("changes", cursor)
        with self._dropped_on_error(cursor):
            return Touched(*self._changes(cursor))

    def drop_cursor(self, cursor: str) -> None:
        """Remove a cursor; a table without cursors logs nothing. Safe with every verb."""
        self._check_open("drop_cursor")
        self._check_cursor("drop_cursor", cursor)
        if not self._drop_cursor(cursor):
            raise FailedPreconditionError(
                f"[Table.drop_cursor] expected one of the cursors {self._cursors()}, got "
                f"{cursor!r} (table {self.name!r})"
            )

    def cursors(self) -> list[str]:
        """Return the names of the cursors, sorted."""
        self._check_open("cursors")
        return self._cursors()

    @contextmanager
    def _dropped_on_error(self, cursor: str | None) -> Iterator[None]:
        """Drop the cursor if its read fails half-way: the keys of the read may be lost."""
        try:
            yield
        except BaseException:  # also on Ctrl-C
            if cursor is not None and not self._is_closed:
                self._drop_cursor(cursor)
            raise

    def _check_cursor(self, verb: str, cursor: str) -> None:
        if not isinstance(cursor, str) or not cursor:
            raise TypeError(
                f"[Table.{verb}] expected cursor as a name, got {cursor!r} (table {self.name!r})"
            )


class BaseTable(ReadVerbs, BagVerbs, RetentionVerbs, ChangeVerbs):
    """A table from int64 keys to trainable rows. Duplicate keys are legal in every verb.

    Any two verbs may run at once on any two threads. A call is all or nothing: all arguments are
    checked before the first change. A lookup is atomic per row, not per call.

    Args:
        config: settings of the table.
        clock: function that returns the time of a call without `now`.
    """

    def shards(self) -> "Sequence[BaseTable]":
        """Return the shards of a sharded table, in the order of their numbers, or no shards."""
        return ()

    def lookup_or_insert(
        self,
        keys: torch.Tensor,
        *,
        step: int = 0,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> torch.Tensor:
        """Return weights of the keys; insert missing keys. Safe with every verb.

        Args:
            keys: keys, int64 (n,).
            step: training step, for a `OneBit` view.
            now: time of the new rows in seconds; None means the table's clock.
            num_threads: largest number of threads.

        Returns:
            float32 (n, dim).
        """
        self._check_keys("lookup_or_insert", keys)
        checks.check_training(self.config, "lookup_or_insert")
        step = checks.check_step(self.config, "lookup_or_insert", step)
        threads = checks.check_threads(self.config, "lookup_or_insert", num_threads, keys.numel())
        with self._time("lookup_or_insert", now) as time_now:
            return self._lookup_or_insert(keys, step, time_now, threads)

    def assign(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Set the weights of the keys; of equal keys the last wins. Safe with every verb.

        A missing key is inserted with new optimizer state; an existing key keeps its state.

        Args:
            keys: keys, int64 (n,).
            values: weights, float32 (n, dim).
            now: time of the update in seconds.
            num_threads: largest number of threads.
        """
        threads = self._check_values("assign", keys, "values", values, num_threads)
        with self._time("assign", now) as time_now:
            absent = (values == 0).all(dim=1) if self.config.skip_zero else None
            self._assign(keys, values, absent, time_now, threads)

    def assign_add(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Add values to the weights; values of equal keys are summed first. Safe with every verb.

        A missing key is inserted with its initial value before the addition.

        Args:
            keys: keys, int64 (n,).
            values: values to add, float32 (n, dim).
            now: time of the update in seconds.
            num_threads: largest number of threads.
        """
        threads = self._check_values("assign_add", keys, "values", values, num_threads)
        with self._time("assign_add", now) as time_now:
            self._assign_add(keys, values, time_now, threads)

    def apply_gradients(
        self,
        keys: torch.Tensor,
        grads: torch.Tensor,
        *,
        step: int = 0,
        learning_rates: Sequence[float] | None = None,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> Applied:
        """Apply one optimizer step per distinct key, with summed gradients. Safe with every verb.

        Args:
            keys: keys, int64 (n,).
            grads: gradients, float32 (n, dim).
            step: training step, for schedules and for optimizers that count steps.
            learning_rates: one rate per segment for this call; None means the segments' own rates.
            now: time of the update in seconds.
            num_threads: largest number of threads.

        Returns:
            Numbers of applied, inserted, refused and skipped keys.
        """
        threads = self._check_values("apply_gradients", keys, "grads", grads, num_threads)
        checks.check_training(self.config, "apply_gradients")
        step = checks.check_step(self.config, "apply_gradients", step)
        rates = checks.check_rates(self.config, "apply_gradients", step, learning_rates)
        with self._time("apply_gradients", now) as time_now:
            return self._apply_gradients(keys, grads, rates, step, time_now, threads)

    def reinitialize(self, keys: torch.Tensor, *, now: int | None = None) -> torch.Tensor:
        """Replace the rows of the keys by new rows; insert missing keys. Safe with every verb.

        Returns:
            int32 (n,): 1 for a key that existed before the call, 0 for a new key.
        """
        self._check_keys("reinitialize", keys)
        checks.check_training(self.config, "reinitialize")
        with self._time("reinitialize", now) as time_now:
            return self._reinitialize(keys, time_now)

    def erase(self, keys: torch.Tensor) -> torch.Tensor:
        """Remove the keys; missing keys are ignored. Safe with every verb.

        Returns:
            bool (n,): whether the key existed before the call.
        """
        self._check_keys("erase", keys)
        return self._erase(keys)

    def import_rows(self, rows: Rows, *, num_threads: int | None = None) -> None:
        """Insert whole rows, replacing existing ones; of equal keys the last wins.

        Safe with every verb. Times come from the rows. A serving table also accepts weights as
        float32, float16 or bfloat16, from the export of a training table (`Rows.weights_only`).

        Args:
            rows: rows with the columns of the table's own exports.
            num_threads: largest number of threads.
        """
        self._check_open("import_rows")
        source = rows
        if self._is_serving:
            rows = serving.encode_rows(self.config, source)
        checks.check_rows(self.config, rows)
        threads = checks.check_threads(self.config, "import_rows", num_threads, len(rows))
        absent = serving.is_zero(self.config, source) if self.config.skip_zero else None
        self._import_rows(rows, absent, threads)

    def clear(self) -> None:
        """Remove every row, candidate and filter count. Safe with every verb."""
        self._check_open("clear")
        self._clear()
