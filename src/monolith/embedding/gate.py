"""A gate that many writers pass together and one that needs a quiet moment passes alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Gate"]


class Gate:
    """Shared by writers; held alone by what must see every writing call whole or not at all.

    Who waits to be alone goes first: later writers wait for it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_inside = 0
        self._num_alone = 0  # those who are alone, or wait to be
        self._is_held = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Inside together with others."""
        with self._changed:
            while self._num_alone:
                self._changed.wait()
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
        """Inside with nobody else."""
        with self._changed:
            self._num_alone += 1
            try:
                while self._num_inside or self._is_held:
                    self._changed.wait()
            except BaseException:  # Ctrl-C
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
