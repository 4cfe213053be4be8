"""Ctrl-C during a run: the first one ends it after the step, the second one at once."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Interrupt"]


class Interrupt:
    """Notes Ctrl-C inside of its block, on the main thread; elsewhere it does nothing.

    A process that ignores Ctrl-C, as one in the background of a shell may, goes on to do so.

    Args:
        tell: called at the first Ctrl-C, in the signal handler.

    Attributes:
        is_set: whether Ctrl-C came.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self.is_set = False
        self._tell = tell
        self._previous: Any = None

    def __enter__(self) -> "Self":
        is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        if threading.current_thread() is threading.main_thread() and not is_ignored:
            self._previous = signal.signal(signal.SIGINT, self._handle) or signal.SIG_DFL
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        self._restore()  # the next one does what it does elsewhere
        self._tell()

    def _restore(self) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None
