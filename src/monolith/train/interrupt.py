"""Ctrl-C and SIGTERM during a run: the first signal ends it after the step, the second at once."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Notes Ctrl-C (SIGINT) and SIGTERM inside of its block; does nothing off the main thread.

    A process that ignores one of the signals, as a background process of a shell may ignore
    Ctrl-C, keeps ignoring that signal.

    Args:
        tell: called at the first signal, in the signal handler.

    Attributes:
        received: the signal that came; None before.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self.received: signal.Signals | None = None
        self._tell = tell
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Self":
        if threading.current_thread() is threading.main_thread():
            for each in _SIGNALS:
                if signal.getsignal(each) is not signal.SIG_IGN:
                    self._previous[each] = signal.signal(each, self._handle) or signal.SIG_DFL
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
        self._restore()  # the next signal does what it does elsewhere
        self._tell()

    def _restore(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())
