"""When to save: after some seconds or steps, and at another pace outside of a tide window."""

import time
from collections.abc import Callable
from typing import Protocol


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
        self._every_secs, self._every_steps = every_secs, every_steps
        self._tide = tide if tide_every_secs is not None else None
        self._tide_every_secs = tide_every_secs
        self._clock = clock
        self._is_enabled = True
        self._last: tuple[int, float] | None = None  # step and time

    def enable(self) -> None:
        """Let it trigger again."""
        self._is_enabled = True

    def disable(self) -> None:
        """Never trigger until `enable`."""
        self._is_enabled = False

    def reset(self) -> None:
        """Let the next query trigger."""
        self._last = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it is time; never twice for one step."""
        if not self._is_enabled:
            return False
        if self._last is None:
            return True
        last_step, last_time = self._last
        if step == last_step:
            return False
        elapsed = self._clock() - last_time
        if self._tide is not None and not self._tide.is_open():
            assert self._tide_every_secs is not None
            return elapsed >= self._tide_every_secs
        if self._every_secs is not None:
            return elapsed >= self._every_secs
        assert self._every_steps is not None
        return step >= last_step + self._every_steps

    def update_last_triggered_step(self, step: int) -> None:
        """Begin the next interval."""
        self._last = step, self._clock()

    def last_triggered_step(self) -> int | None:
        """The step of the last trigger; None before the first and after `reset`."""
        return None if self._last is None else self._last[0]
