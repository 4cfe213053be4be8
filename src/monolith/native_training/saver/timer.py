"""When to save: after some seconds or steps, and at another pace outside of a tide window."""

import time
from collections.abc import Callable
from typing import Protocol

from monolith.train.saves.checkpoint_hook import Pace


class Window(Protocol):
    """Hours of the day; a `TideWindow` is one."""

    def is_open(self) -> bool:
        """Whether the current time is inside."""


class SecondOrStepTimer:
    """Triggers every so many seconds or steps. Not for several threads.

    The first query triggers. With a window that is closed, `tide_every_secs` is the pace and steps
    do not count.

    Args:
        every_secs: pace in seconds.
        every_steps: pace in steps; one of the two is given.
        tide: the window.
        tide_every_secs: pace in seconds outside of it.
        clock: seconds; only differences count.

    Raises:
        ValueError: both paces are given, or neither.

    Example:
        >>> timer = SecondOrStepTimer(every_steps=10)
        >>> timer.should_trigger_for_step(5)
        True
        >>> timer.update_last_triggered_step(5)
        >>> timer.should_trigger_for_step(14), timer.should_trigger_for_step(15)
        (False, True)
    """

    def __init__(
        self,
        every_secs: float | None = None,
        every_steps: int | None = None,
        *,
        tide: Window | None = None,
        tide_every_secs: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if (every_secs is None) == (every_steps is None):
            raise ValueError(
                "[SecondOrStepTimer] expected one of every_secs and every_steps, got "
                f"{every_secs} and {every_steps}"
            )
        self._pace = Pace(every_steps, every_secs, clock)
        self._tide = tide if tide_every_secs is not None else None
        self._tide_pace = Pace(every_seconds=tide_every_secs, clock=clock)
        self._is_enabled = True
        self._last_step: int | None = None

    def enable(self) -> None:
        """Let the timer trigger again."""
        self._is_enabled = True

    def disable(self) -> None:
        """Never trigger until `enable`."""
        self._is_enabled = False

    def reset(self) -> None:
        """Let the next query trigger."""
        self._last_step = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it is time; never twice for one step."""
        if not self._is_enabled or self._last_step is None:
            return self._is_enabled
        is_closed = self._tide is not None and not self._tide.is_open()
        return (self._tide_pace if is_closed else self._pace).is_due(step)

    def update_last_triggered_step(self, step: int) -> None:
        """Begin the next interval."""
        self._last_step = step
        self._pace.restart(step)
        self._tide_pace.restart(step)

    def last_triggered_step(self) -> int | None:
        """Return the step of the last trigger; None before the first and after `reset`."""
        return self._last_step
