"""`BaseTable`: the verbs of a table, their meaning and their checks.

A subclass stores rows: it implements `TableStorage` (`calls.py`) and may trust its arguments.
`reference/table.py` is the shortest one and defines what each verb does.
"""

from collections.abc import Iterable, Iterator, Sequence

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
    """The part of a table that reads; see `BaseTable` for the rest."""

    def lookup(
        self,
        keys: torch.Tensor,
        *,
        missing: str = "initial",
        step: int = 0,
        num_threads: int | None = None,
    ) -> torch.Tensor:
        """Weights of the keys. Stores nothing. Safe with every verb; readers take no lock.

        Args:
            keys: int64 (n,).
            missing: what a missing key reads as: "initial", the row it would get, or "zeros". A
                serving table reads zeros always, and so does a key that has to ask admission.
            step: training step, for a `OneBit` view.
            num_threads: most threads to use, torch.get_num_threads() if None; a call of few keys
                takes fewer.

        Returns:
            float32 (n, dim).
        """
        self._check_keys("lookup", keys)
        initial = self._check_missing("lookup", missing)
        step = checks.check_step(self.config, "lookup", step)
        threads = checks.check_threads(self.config, "lookup", num_threads, keys.numel())
        return self._lookup(keys, initial, step, threads)

    def contains(self, keys: torch.Tensor) -> torch.Tensor:
        """Whether each key has a row. Safe with every verb.

        Returns:
            bool (n,).
        """
        self._check_keys("contains", keys)
        return self._contains(keys)

    def lookup_entry(self, keys: torch.Tensor) -> Entries:
        """Whole rows of the keys: weights, optimizer state, time. Safe with every verb.

        Returns:
            One entry per key; absent ones are marked absent.
        """
        self._check_keys("lookup_entry", keys)
        return self._lookup_entry(keys)

    def export(
        self,
        partitions: Iterable[int] | None = None,
        chunk_rows: int = 65536,
        after: int | None = None,
    ) -> Iterator[Rows]:
        """All rows in ascending order of their hash, in chunks. Safe with every verb.

        A row that is changed meanwhile is exported as it was at one moment.

        Args:
            partitions: only these partitions.
            chunk_rows: most rows of a chunk.
            after: resume behind this key, the last one of an earlier chunk.
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
        """Bytes held: of rows, index and candidates, and `total_bytes`. Safe with every verb.

        Beside the total: `cut_bytes`, what open cuts keep; `log_bytes`, of the touched log; and
        `spare_log_bytes`, which the log keeps for its next notes.
        """
        self._check_open("memory_report")
        return self._memory_report()

    @property
    def num_update_calls(self) -> int:
        """Calls of assign, assign_add and apply_gradients so far: the seed of their rounding.

        The apply-call number of files and replay records; a restore sets it.
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
        """Counters since construction (names: docs/tables.md). Safe with every verb."""
        self._check_open("stats")
        return self._stats()


class ChangeVerbs(TableCalls):
    """The part of a table that others follow; see `BaseTable` for the rest."""

    def cut(self) -> Snapshot:
        """All rows as they are now, to be read while writers go on. Safe with every verb.

        Every writing call is wholly before or wholly after the cut: it waits for those that run. A
        later writer keeps a copy of each row that it changes first, until the cut is closed. At
        most four cuts are open at once; `clear` is refused meanwhile, and so is a cut while
        `restore_tables` fills the table.

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
        with self._cut_lock:
            self._check_not_loading("[Table.cut]")  # half of a table is no moment of it
            storage = self._open_cut()
        if storage is None:
            raise FailedPreconditionError(
                f"[Table.cut] expected at most {MAX_CUTS} open cuts, got one more; close one "
                f"(table {self.name!r})"
            )
        return Snapshot(self.config, storage)

    def changes(self, cursor: str) -> Touched:
        """Keys that changed or went since the cursor's last read. Safe with every verb.

        The first read of a cursor is full, and so is one after `clear`, after a load, and where the
        log grew over its bound (`changes_bytes`) meanwhile. A read that fails drops the cursor, so
        that no key is lost. It waits for running writers.

        Args:
            cursor: name of the reader; a new name starts a new cursor.
        """
        self._check_open("changes")
        self._check_cursor("changes", cursor)
        try:
            return Touched(*self._changes(cursor))
        except BaseException:  # Ctrl-C too
            if not self._is_closed:
                self._drop_cursor(cursor)
            raise

    def drop_cursor(self, cursor: str) -> None:
        """Forget a cursor; without cursors nothing is logged. Safe with every verb."""
        self._check_open("drop_cursor")
        self._check_cursor("drop_cursor", cursor)
        if not self._drop_cursor(cursor):
            raise FailedPreconditionError(
                f"[Table.drop_cursor] expected one of the cursors {self._cursors()}, got "
                f"{cursor!r} (table {self.name!r})"
            )

    def cursors(self) -> list[str]:
        """Names of the cursors, sorted."""
        self._check_open("cursors")
        return self._cursors()

    def _check_cursor(self, verb: str, cursor: str) -> None:
        if not isinstance(cursor, str) or not cursor:
            raise TypeError(
                f"[Table.{verb}] expected cursor as a name, got {cursor!r} (table {self.name!r})"
            )


class BaseTable(ReadVerbs, BagVerbs, RetentionVerbs, ChangeVerbs):
    """A table: any int64 key -> a trainable row. Duplicate keys are legal in every verb.

    Any two verbs may run at once from any two threads. A call is all or nothing: it is checked
    completely before the first change. A lookup is atomic per row, not per call.

    Args:
        config: what the table is.
        clock: gives the time of a call that has no `now`.
    """

    def shards(self) -> "Sequence[BaseTable]":
        """Return the parts of a table in shards, in the order of their numbers; none of a whole."""
        return ()

    def lookup_or_insert(
        self,
        keys: torch.Tensor,
        *,
        step: int = 0,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> torch.Tensor:
        """Weights of the keys; missing ones are inserted with initial values. Safe with every verb.

        Args:
            keys: int64 (n,).
            step: training step, for a `OneBit` view.
            now: time of the new rows in seconds; the table's clock if None.
            num_threads: most threads to use.

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

        A missing key is inserted with fresh optimizer state; an existing one keeps its state.

        Args:
            keys: int64 (n,).
            values: float32 (n, dim).
            now: time of the update in seconds.
            num_threads: most threads to use.
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
        """Add to the weights; values of equal keys are summed first. Safe with every verb.

        A missing key is inserted, starting from its initial value.

        Args:
            keys: int64 (n,).
            values: float32 (n, dim).
            now: time of the update in seconds.
            num_threads: most threads to use.
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
        """One optimizer step per distinct key, on the sum of its gradients. Safe with every verb.

        Args:
            keys: int64 (n,).
            grads: float32 (n, dim).
            step: training step, for schedules and for optimizers that count steps.
            learning_rates: one per segment, for this call; each segment's own if None.
            now: time of the update in seconds.
            num_threads: most threads to use.

        Returns:
            Counts of keys applied, inserted, refused and skipped.
        """
        threads = self._check_values("apply_gradients", keys, "grads", grads, num_threads)
        checks.check_training(self.config, "apply_gradients")
        step = checks.check_step(self.config, "apply_gradients", step)
        rates = checks.check_rates(self.config, "apply_gradients", step, learning_rates)
        with self._time("apply_gradients", now) as time_now:
            return self._apply_gradients(keys, grads, rates, step, time_now, threads)

    def reinitialize(self, keys: torch.Tensor, *, now: int | None = None) -> torch.Tensor:
        """Give the keys fresh rows, creating missing ones. Safe with every verb.

        Returns:
            int32 (n,): 1 where the key existed before the call, 0 where it was created.
        """
        self._check_keys("reinitialize", keys)
        checks.check_training(self.config, "reinitialize")
        with self._time("reinitialize", now) as time_now:
            return self._reinitialize(keys, time_now)

    def erase(self, keys: torch.Tensor) -> torch.Tensor:
        """Remove the keys; a missing one is left alone. Safe with every verb.

        Returns:
            bool (n,): whether the key existed before the call.
        """
        self._check_keys("erase", keys)
        return self._erase(keys)

    def import_rows(self, rows: Rows, *, num_threads: int | None = None) -> None:
        """Insert whole rows, replacing existing ones; of equal keys the last wins.

        Safe with every verb. Times come from the rows. A serving table also takes weights as
        float32, float16 or bfloat16, from a training table's export (`Rows.weights_only`).

        Args:
            rows: with the columns of the table's own exports.
            num_threads: most threads to use.
        """
        self._check_open("import_rows")
        given = rows
        if self._is_serving:
            rows = serving.encoded(self.config, given)
        checks.check_rows(self.config, rows)
        threads = checks.check_threads(self.config, "import_rows", num_threads, len(rows))
        absent = serving.is_zero(self.config, given) if self.config.skip_zero else None
        self._import_rows(rows, absent, threads)

    def clear(self) -> None:
        """Remove every row, candidate and filter count. Safe with every verb."""
        self._check_open("clear")
        self._clear()
