"""Ctrl-C and SIGTERM during a run: the first ends the run after its step, the second at once."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """A context that handles Ctrl-C (SIGINT) and SIGTERM; no effect outside the main thread.

    A process that ignores one of the signals, as a background process of a shell may ignore
    Ctrl-C, keeps ignoring that signal.

    Args:
        stop: Function that the signal handler calls at the first signal.

    Attributes:
        received: The first signal; None before a signal.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self.received: signal.Signals | None = None
        self._stop = stop
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Self":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle) or signal.SIG_DFL
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._restore()  # the next signal has the effect that it has outside of the block
        self._stop()

    def _restore(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())
