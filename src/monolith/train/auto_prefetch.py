"""Finds out whether reading ahead pays."""

import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

from monolith.train.step_reader import StepReader
from monolith.util.hooks import Hook, StepContext, StepResults

__all__ = ["AutoPrefetch"]

_log = logging.getLogger(__name__)

_SKIPPED, _MEASURED = 3, 12  # steps of each way
_MIN_GAIN = 0.03  # of the time of a step; less is noise


class AutoPrefetch(Hook):
    """Measures some steps without and some with prefetch of one step, and keeps what is faster.

    Args:
        reader: begins without prefetch.
        seconds: gives the time.
    """

    def __init__(
        self, reader: StepReader[Any], seconds: Callable[[], float] = time.perf_counter
    ) -> None:
        self._reader, self._seconds = reader, seconds
        self._last: float | None = None
        self._gaps: list[float] = []

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Note how long the step took, and change sides when it is time."""
        each = _SKIPPED + _MEASURED
        if len(self._gaps) == 2 * each:
            return
        now = self._seconds()
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now
        if len(self._gaps) == each and self._reader.capacity == 0:
            self._reader.set_capacity(1)
        elif len(self._gaps) == 2 * each:
            self._choose(self._gaps[_SKIPPED:each], self._gaps[each + _SKIPPED :])

    def _choose(self, without: list[float], ahead: list[float]) -> None:
        plain, prefetched = statistics.median(without), statistics.median(ahead)
        chosen = 1 if prefetched < (1 - _MIN_GAIN) * plain else 0
        self._reader.set_capacity(chosen)
        _log.info(
            "prefetch auto: %d, for a step takes %.3f ms without and %.3f ms with it",
            chosen,
            plain * 1e3,
            prefetched * 1e3,
        )
