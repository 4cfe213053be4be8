"""Thread that evicts expired rows at intervals."""

import os
import threading
from typing import TYPE_CHECKING

from monolith.table.arguments import check_number
from monolith.table.eviction import RetentionVerbs

if TYPE_CHECKING:
    from typing_extensions import Self


_NICENESS = 10


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
        which = f" (table {table.name!r})"
        check_number("[BackgroundSweep]", "every_seconds", every_seconds, which)
        if not 0 < every_seconds <= threading.TIMEOUT_MAX:
            raise ValueError(
                f"[BackgroundSweep] expected every_seconds in (0, {threading.TIMEOUT_MAX:.0f}], "
                f"got {every_seconds}{which}"
            )
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


def _be_nice() -> None:
    """Lower the priority of this thread, if the system can."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
    except (AttributeError, OSError):
        return
