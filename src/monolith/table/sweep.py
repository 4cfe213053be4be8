"""Threads that evict expired rows at intervals."""

import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError
from monolith.table.arguments import check_number
from monolith.table.base import BaseTable
from monolith.table.calls import Clock
from monolith.table.eviction import RetentionVerbs

if TYPE_CHECKING:
    from typing_extensions import Self


_log = logging.getLogger(__name__)

_NICENESS = 10
_POLL_SECONDS = 10.0


class BackgroundSweep:
    """Calls `evict()` on a table every `every_seconds`, until it is closed.

    The sweep runs in short slices on a thread of low priority. Its first error ends the sweep;
    `close` raises the error, so that the error is not lost.

    Args:
        table: table to sweep; it must stay open until the sweep is closed.
        every_seconds: pause between two sweeps, and before the first.

    Example:
        >>> from monolith.table import Expiry, Segment, Table, TableConfig
        >>> table = Table(TableConfig("user", Segment(2), expiry=Expiry(30)))
        >>> with BackgroundSweep(table, every_seconds=3600) as sweep:
        ...     sweep.num_sweeps
        0
    """

    def __init__(self, table: RetentionVerbs, every_seconds: float) -> None:
        _check_pause("[BackgroundSweep]", table, every_seconds)
        self.num_sweeps = 0
        self.num_evicted = 0
        self._table, self._every_seconds = table, every_seconds
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"sweep {table.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the sweep after its current slice and raise its error, if any. Safe to call twice."""
        self._stop.set()
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        _be_nice()
        try:
            while not self._stop.wait(self._every_seconds):
                self._sweep()
        except BaseException as error:
            self._error = error

    def _sweep(self) -> None:
        for num_evicted in self._table.evict_in_slices():
            self.num_evicted += num_evicted
            if self._stop.is_set():
                return
        self.num_sweeps += 1

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class TableSweep:
    """Evicts from a table each time a clock has advanced by `every_seconds`.

    The table owns the sweep: `table.close()` ends the thread and waits for its current slice. The
    end of a table that nobody closes ends the thread, too. The thread asks the clock every ten
    seconds; an error ends the sweep with a log.

    Args:
        table: table to sweep.
        every_seconds: seconds of the clock between two sweeps, and before the first.
        clock: gives seconds, usually the clock of the table.

    Attributes:
        every_seconds: the same.

    Example:
        >>> import torch
        >>> from monolith.table import Expiry, Segment, Table, TableConfig
        >>> seconds = [0]
        >>> clock = lambda: seconds[0]
        >>> config = TableConfig("user", Segment(2), expiry=Expiry(0))
        >>> with Table(config, clock=clock) as table:
        ...     sweep = TableSweep(table, 3600, clock)
        ...     table.assign(torch.tensor([7]), torch.ones(1, 2))
        ...     early, seconds[0] = sweep.check(), 3600
        ...     early, sweep.check()
        (None, 1)
    """

    def __init__(self, table: BaseTable, every_seconds: float, clock: Clock) -> None:
        _check_pause("[TableSweep]", table, every_seconds)
        self.every_seconds, self._name = every_seconds, table.name
        self._clock, self._last = clock, clock()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._table = weakref.ref(table, lambda _, stop=self._stop: stop.set())  # type: ignore[misc]
        self._thread = threading.Thread(target=self._run, name=f"sweep {table.name}", daemon=True)
        self._thread.start()
        table._on_close(self._end)

    @property
    def is_running(self) -> bool:
        """Whether the thread runs: the table is open, and no sweep has failed."""
        return self._thread.is_alive()

    def check(self) -> int | None:
        """Sweep if the clock has advanced far enough. Thread-safe.

        Returns:
            Number of evicted rows; None if no sweep was due.
        """
        table = self._table()
        with self._lock:
            now = self._clock()
            if table is None or self._stop.is_set() or now - self._last < self.every_seconds:
                return None
            self._last = now
            num_evicted = 0
            for number in table.evict_in_slices():
                num_evicted += number
                if self._stop.is_set():
                    break
            return num_evicted

    def close(self) -> None:
        """End the sweep after its current slice. Closing twice is fine."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _end(self, name: str) -> None:
        self.close()

    def _run(self) -> None:
        _be_nice()
        try:
            while not self._stop.wait(min(self.every_seconds, _POLL_SECONDS)):
                self.check()
        except FailedPreconditionError:
            if not self._stop.is_set():  # otherwise the table was closed between two slices
                _log.exception("the sweep of table %r has ended", self._name)
        except Exception:
            _log.exception("the sweep of table %r has ended", self._name)


def _check_pause(where: str, table: RetentionVerbs, every_seconds: float) -> None:
    which = f" (table {table.name!r})"
    check_number(where, "every_seconds", every_seconds, which)
    if not 0 < every_seconds <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"{where} expected every_seconds in (0, {threading.TIMEOUT_MAX:.0f}], "
            f"got {every_seconds}{which}"
        )


def _be_nice() -> None:
    """Lower the priority of this thread, if the system can."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
    except (AttributeError, OSError):
        return
