"""`ControlRequests`: work that other threads ask of the training thread."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from monolith.errors import DeadlineExceededError, FailedPreconditionError

_Result = TypeVar("_Result")


class _Request:
    def __init__(self, what: str, call: Callable[[], Any]) -> None:
        self.what, self._call = what, call
        self.is_done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:
            self.error = error
        except BaseException as error:  # such as Ctrl-C: it is the training's, too
            self.error = error
            raise
        finally:
            self.is_done.set()


class ControlRequests:
    """Hands functions to the training thread, which calls them between two steps.

    The training thread calls `serve` at each step boundary, and `wait` while training is stopped.
    Any thread may call `call`.

    Example:
        >>> requests = ControlRequests()
        >>> caller = threading.Thread(target=lambda: print(requests.call("a sum", lambda: 1 + 2)))
        >>> caller.start()
        >>> requests.wait(10)
        >>> requests.serve()
        >>> caller.join()
        3
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[_Request] = deque()
        self._end: str | None = None

    def call(
        self, what: str, call: Callable[[], _Result], timeout_seconds: float = 600.0
    ) -> _Result:
        """Let the training thread call a function; return its result.

        Args:
            what: Name of the work, for messages.
            call: Function.
            timeout_seconds: Limit on the wait for a step boundary; work that has begun is waited
                for.

        Raises:
            DeadlineExceededError: There was no step boundary in time; the function is not called.
            FailedPreconditionError: The run has ended.
            Exception: The error of the function.
        """
        request = _Request(what, call)
        with self._changed:
            self._check_open(what)
            self._waiting.append(request)
            self._changed.notify_all()
        if not request.is_done.wait(min(timeout_seconds, threading.TIMEOUT_MAX)):
            with self._changed:
                is_waiting = request in self._waiting
                if is_waiting:
                    self._waiting.remove(request)
            if is_waiting:
                raise DeadlineExceededError(
                    f"[ControlRequests] expected a step boundary for {what} within "
                    f"{timeout_seconds:g} seconds, got none: the step takes longer; wait longer"
                )
            request.is_done.wait()
        if request.error is not None:
            raise request.error
        result: _Result = request.result
        return result

    def serve(self) -> None:
        """Do what other threads have asked for; an error is the asking thread's."""
        while self._waiting:  # without the lock: each step asks
            with self._changed:
                request = self._waiting.popleft() if self._waiting else None
            if request is not None:
                request.run()

    def wait(self, timeout_seconds: float) -> None:
        """Wait for a request or for `wake`, at most some seconds."""
        with self._changed:
            if not self._waiting:
                self._changed.wait(timeout_seconds)

    def wake(self) -> None:
        """End a `wait` that is running."""
        with self._changed:
            self._changed.notify_all()

    def close(self, reason: str) -> None:
        """Refuse requests that wait, and later ones.

        Args:
            reason: State of the run, for messages, such as "the run has ended".
        """
        with self._changed:
            self._end = reason
            waiting, self._waiting = list(self._waiting), deque()
            for request in waiting:
                try:
                    self._check_open(request.what)
                except FailedPreconditionError as error:
                    request.error = error
                request.is_done.set()

    def _check_open(self, what: str) -> None:
        if self._end is not None:
            raise FailedPreconditionError(
                f"[ControlRequests] expected a run that goes on for {what}, got none: {self._end}"
            )
