"""Queue of strings with a state, for example of file names that are still to be read."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from monolith.errors import DeadlineExceededError, InvalidArgumentError
from monolith.util.waiting import DEFAULT_TIMEOUT_SECONDS, check_timeout

_MAX_PAUSE_SECONDS = 0.01


class CriticalSection(Protocol):
    """Lock that its holder may acquire again, such as `threading.RLock`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; return whether it was acquired within the timeout."""

    def release(self) -> None:
        """Release the lock."""


class StrQueue:
    """First-in-first-out queue of strings, with a function that refills the empty queue.

        elements  a b c d e      offset 2: a and b have been handed out
                      ^     ^    arr_size 5: c, d and e are left

    Every public method holds `critical_section`. Queues with a common section are serialized, and
    the refill function of one queue may use the others.

    Args:
        initial_elements: strings that are enqueued first; a loaded state replaces them.
        critical_section: lock of the queue; None creates a lock.
        auto_enqueue_fn: called by `dequeue` while the queue is empty; returns new strings, possibly
            none yet, and whether these were the last.
        capacity: greatest number of waiting strings.
        name: name of the queue, for messages.

    Raises:
        InvalidArgumentError: the initial elements do not fit into the queue.

    Example:
        >>> queue = StrQueue(["a", "b"])
        >>> queue.dequeue()
        ('a', False)
        >>> copy = StrQueue()
        >>> copy.load_state_dict(queue.state_dict())
        >>> copy.dequeue(), copy.dequeue()
        (('b', False), ('', True))
    """

    def __init__(
        self,
        initial_elements: Sequence[str] | None = None,
        critical_section: CriticalSection | None = None,
        auto_enqueue_fn: Callable[[], tuple[Sequence[str], bool]] | None = None,
        capacity: int = 100_000,
        name: str = "StrQueue",
    ) -> None:
        self.critical_section: CriticalSection = (
            threading.RLock() if critical_section is None else critical_section
        )
        self.capacity, self.name = capacity, name
        self._auto_enqueue_fn = auto_enqueue_fn
        self._elements: list[str] = []
        self._offset = 0
        self._arr_size = 0
        self.enqueue_many(() if initial_elements is None else initial_elements)

    def enqueue_many(
        self, elements: Sequence[str], timeout: float = DEFAULT_TIMEOUT_SECONDS
    ) -> None:
        """Append strings in order: either all of them or none.

        Args:
            elements: strings to append.
            timeout: limit in seconds on the wait for the critical section.

        Raises:
            InvalidArgumentError: the strings do not fit into the queue.
            TypeError: an element is no string.
            DeadlineExceededError: the section was not free in time.
        """
        with self._inside("enqueue_many", timeout):
            self._raw_enqueue_many(elements)

    def dequeue(self, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> tuple[str, bool]:
        """Return the next string and False, or `("", True)` at the end.

        Args:
            timeout: limit in seconds on the wait for the critical section and for elements of
                `auto_enqueue_fn`.

        Raises:
            DeadlineExceededError: the section was not free in time, or the function returned
                neither a string nor the end in time.
            Exception: error of the function.
        """
        deadline = time.monotonic() + timeout
        with self._inside("dequeue", timeout):
            return self._raw_dequeue(deadline)

    def state_dict(self, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> dict[str, Any]:
        """Return the state with which a new queue continues: `elements`, `offset`, `arr_size`.

        Raises:
            DeadlineExceededError: the section was not free in time.
        """
        with self._inside("state_dict", timeout):
            elements, offset, arr_size = list(self._elements), self._offset, self._arr_size
        return {"elements": elements, "offset": offset, "arr_size": arr_size}

    def load_state_dict(
        self, state: Mapping[str, Any], timeout: float = DEFAULT_TIMEOUT_SECONDS
    ) -> None:
        """Replace the strings by those that were waiting when the state was taken.

        Raises:
            InvalidArgumentError: the state has other keys, does not fit, or is inconsistent.
            TypeError: an element is no string.
            DeadlineExceededError: the section was not free in time.
        """
        where = f"[StrQueue.load_state_dict] (queue {self.name!r})"
        if set(state) != {"elements", "offset", "arr_size"}:
            raise InvalidArgumentError(
                f"{where} expected the keys elements, offset and arr_size, got {sorted(state)}"
            )
        elements, offset, arr_size = state["elements"], state["offset"], state["arr_size"]
        _check_strings(where, elements)
        if not 0 <= offset <= arr_size <= min(len(elements), self.capacity):
            raise InvalidArgumentError(
                f"{where} expected 0 <= offset <= arr_size <= {len(elements)} elements and a "
                f"capacity of {self.capacity}, got offset {offset} and arr_size {arr_size}"
            )
        with self._inside("load_state_dict", timeout):
            self._elements = list(elements[:arr_size])
            self._offset, self._arr_size = offset, arr_size

    def _raw_enqueue_many(self, elements: Sequence[str]) -> None:
        _check_strings(f"[StrQueue.enqueue_many] (queue {self.name!r})", elements)
        old_size = self._arr_size - self._offset
        new_size = old_size + len(elements)
        if new_size > self.capacity:
            raise InvalidArgumentError(
                f"[StrQueue.enqueue_many] expected at most {self.capacity} elements, got "
                f"{new_size} (queue {self.name!r}); dequeue some, or make it with a larger capacity"
            )
        del self._elements[: self._offset]
        self._elements.extend(elements)
        self._offset, self._arr_size = 0, new_size

    def _raw_dequeue(self, deadline: float = math.inf) -> tuple[str, bool]:
        assert self._offset <= self._arr_size
        if self._auto_enqueue_fn is not None and self._offset == self._arr_size:
            self._refill(self._auto_enqueue_fn, deadline)
        if self._offset == self._arr_size:
            return "", True
        element = self._elements[self._offset]
        self._offset += 1
        return element, False

    def _refill(
        self, auto_enqueue_fn: Callable[[], tuple[Sequence[str], bool]], deadline: float
    ) -> None:
        start, pause = time.monotonic(), 0.0
        while True:
            elements, out_of_range = auto_enqueue_fn()
            if out_of_range:
                return
            self._raw_enqueue_many(elements)
            if len(elements) > 0:  # works for arrays, which have no truth value
                return
            if time.monotonic() >= deadline:
                raise DeadlineExceededError(
                    f"[StrQueue.dequeue] expected elements of auto_enqueue_fn within "
                    f"{max(0.0, deadline - start):.3g} s, got none (queue {self.name!r}); have it "
                    "report the end, or give a longer timeout"
                )
            time.sleep(pause)  # the function returned nothing: call it less and less often
            pause = min(_MAX_PAUSE_SECONDS, 2 * pause + 0.0001)

    @contextmanager
    def _inside(self, verb: str, timeout: float) -> Iterator[None]:
        where = f"[StrQueue.{verb}]"
        limit = min(check_timeout(where, timeout), threading.TIMEOUT_MAX)
        if not self.critical_section.acquire(timeout=limit):
            raise DeadlineExceededError(
                f"{where} expected the critical section within {timeout} s, got none: somebody "
                f"else holds it (queue {self.name!r}); give a longer timeout"
            )
        try:
            yield
        finally:
            self.critical_section.release()


def _check_strings(where: str, elements: Sequence[str]) -> None:
    if isinstance(elements, str):
        raise TypeError(f"{where} expected a sequence of strings, got one string; put it in a list")
    for element in elements:
        if not isinstance(element, str):
            raise TypeError(f"{where} expected strings, got {type(element).__name__}")
