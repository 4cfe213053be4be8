"""A gate that many writers pass together and one that needs a quiet moment passes alone."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from monolith.errors import DeadlineExceededError
from monolith.table.arguments import WAIT_SECONDS, check_wait, time_text


class Gate:
    """Shared by writers; held alone by what must see every writing call whole or not at all.

    Who waits to be alone goes first: later writers wait for it.

    Args:
        owner: of the calls, for messages.
        name: of the table, for messages.
        timeout_seconds: how long a call waits for others at most.
    """

    def __init__(self, owner: str, name: str, timeout_seconds: float = WAIT_SECONDS) -> None:
        self._owner, self._name = owner, name
        self._timeout_seconds = check_wait(owner, timeout_seconds, name)
        self._changed = threading.Condition()
        self._num_inside = 0
        self._num_alone = 0  # those who are alone, or wait to be
        self._is_held = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Inside together with others."""
        with self._changed:
            if self._num_alone:
                self._wait(lambda: not self._num_alone, 0)
            self._num_inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_inside -= 1
                if self._num_alone and not self._num_inside:
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the gate alone."""
        with self._changed:
            self._num_alone += 1
            try:
                self._wait(lambda: not (self._num_inside or self._is_held), 1)
            except BaseException:  # Ctrl-C, or it took too long
                self._leave()
                raise
            self._is_held = True
        try:
            yield
        finally:
            with self._changed:
                self._is_held = False
                self._leave()

    def _leave(self) -> None:
        self._num_alone -= 1
        self._changed.notify_all()

    def _wait(self, is_free: Callable[[], bool], num_own: int) -> None:
        start = time.time()
        if not self._changed.wait_for(is_free, self._timeout_seconds):
            raise DeadlineExceededError(
                f"[{self._owner}] expected the calls before this one to end within "
                f"{self._timeout_seconds} seconds, got {self._num_inside} that write and "
                f"{self._num_alone - num_own} that are alone or wait to be, since "
                f"{time_text(start)} (table {self._name!r}); end them, for example a shard that "
                "does not answer, or make the table with a larger timeout_seconds"
            )
