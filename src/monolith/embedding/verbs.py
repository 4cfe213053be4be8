"""The verbs of a table: their meaning, their checks, their clock. Every table derives from here.

A subclass stores rows; it implements `TableStorage` and may trust its arguments. `reference.py` is
the shortest one and defines what each verb does.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from monolith.embedding import checks, serving
from monolith.embedding.config import TableConfig
from monolith.embedding.counter_random import key_hash
from monolith.embedding.retention import RetentionVerbs
from monolith.embedding.rows import Applied, Entries, Rows
from monolith.embedding.storage import TableStorage
from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Clock", "TableVerbs", "wall_clock"]

Clock = Callable[[], int]
"""Seconds since 1970."""

_FUTURE_SECONDS = 3600  # a `now` further ahead of the clock is clamped (contract 1)


def wall_clock() -> int:
    """The machine's time in whole seconds."""
    return int(time.time())


class TableVerbs(RetentionVerbs, TableStorage):
    """A table: any int64 key -> a trainable row. Duplicate keys are legal in every verb.

    Any two verbs may run at once from any two threads. A call is all or nothing: it is checked
    completely before the first change. A lookup is atomic per row, not per call.

    Args:
        config: what the table is.
        clock: gives the time of a call that has no `now`.
    """

    def __init__(self, config: TableConfig, *, clock: Clock = wall_clock) -> None:
        if not isinstance(config, TableConfig):
            raise TypeError(
                f"[Table] expected config as a TableConfig, got {type(config).__name__}"
            )
        if not callable(clock):
            raise TypeError(
                f"[Table] expected clock as a function that gives seconds, got {clock!r} "
                f"(table {config.name!r})"
            )
        super().__init__(config)
        self.dim = config.dim
        self._is_serving = config.kind == "serving"
        self._clock = clock
        self._is_closed = False

    # Reading

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
        if missing not in ("initial", "zeros"):
            raise ValueError(
                f"[Table.lookup] expected missing 'initial' or 'zeros', got {missing!r} "
                f"(table {self.name!r})"
            )
        step = checks.check_step(self.config, "lookup", step)
        threads = checks.check_threads(self.config, "lookup", num_threads, keys.numel())
        initial = missing == "initial" and not self._is_serving
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
        chunk_rows = checks.check_integer(self.config, "export", "chunk_rows", chunk_rows)
        if chunk_rows < 1:
            raise ValueError(
                f"[Table.export] expected chunk_rows >= 1, got {chunk_rows} (table {self.name!r})"
            )
        ranges = checks.hash_ranges(self.config, partitions)
        if after is not None:
            start = key_hash(checks.check_key(self.config, "export", "after", after)) + 1
            ranges = [(max(first, start), last) for first, last in ranges if last >= start]
        return self._export_ranges(ranges, chunk_rows)

    def _export_ranges(self, ranges: list[tuple[int, int]], chunk_rows: int) -> Iterator[Rows]:
        for first, last in ranges:
            start = first
            while start <= last:
                self._check_open("export")
                rows = self._export_chunk(start, last, chunk_rows)
                if not len(rows):
                    break
                yield rows
                start = key_hash(int(rows.keys[-1])) + 1

    # Writing

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
            if self.config.skip_zero:
                kept, zero = serving.split_zero(keys, (values == 0).all(dim=1))
                self._assign(keys[kept], values[kept], time_now, threads)
                self._erase(zero)
                return
            self._assign(keys, values, time_now, threads)

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
        rates = checks.check_rates(self.config, step, learning_rates)
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

    def import_rows(self, rows: Rows) -> None:
        """Insert whole rows, replacing existing ones; of equal keys the last wins.

        Safe with every verb. Times come from the rows. A serving table also takes weights as
        float32, float16 or bfloat16, from a training table's export (`Rows.weights_only`).
        """
        self._check_open("import_rows")
        given = rows
        if self._is_serving:
            rows = serving.encoded(self.config, given)
        checks.check_rows(self.config, rows)
        if self.config.skip_zero:
            kept, zero = serving.split_zero(rows.keys, serving.is_zero(self.config, given))
            self._import_rows(serving.take(rows, kept))
            self._erase(zero)
        else:
            self._import_rows(rows)
        if len(rows):
            self._saw(int(rows.times.max()))

    def clear(self) -> None:
        """Remove every row, candidate and filter count. Safe with every verb."""
        self._check_open("clear")
        self._clear()
        self._forget_times()

    # Facts

    def __len__(self) -> int:
        self._check_open("len")
        return self._num_rows()

    def memory_report(self) -> dict[str, int]:
        """Bytes held: of rows, index and candidates, and `total_bytes`. Safe with every verb."""
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

    def close(self) -> None:
        """Free the table; running calls finish, later ones raise. Closing twice is fine."""
        self._is_closed = True
        self._close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Checks

    def _check_open(self, verb: str) -> None:
        if self._is_closed:
            raise self._closed_error(verb)

    def _closed_error(self, verb: str) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"[Table.{verb}] expected an open table, got a closed one (table {self.name!r})"
        )

    def _check_keys(self, verb: str, keys: torch.Tensor) -> None:
        self._check_open(verb)
        checks.check_keys(self.config, verb, keys)

    def _check_values(
        self,
        verb: str,
        keys: torch.Tensor,
        name: str,
        values: torch.Tensor,
        num_threads: int | None,
    ) -> int:
        self._check_keys(verb, keys)
        checks.check_matrix(self.config, verb, name, values, (keys.numel(), self.dim))
        return checks.check_threads(self.config, verb, num_threads, keys.numel())

    @contextmanager
    def _time(self, verb: str, now: int | None) -> Iterator[int]:
        """The time of a writing call, seen and counted if clamped when the call has succeeded."""
        clock_now = checks.check_integer(self.config, verb, "the clock's time", self._clock())
        latest = clock_now + _FUTURE_SECONDS
        now = clock_now if now is None else checks.check_integer(self.config, verb, "now", now)
        time_now = min(now, latest)
        checks.check_time(self.config, verb, time_now)
        yield time_now
        self._saw(time_now)
        if now > latest:
            self._count_clamped()
