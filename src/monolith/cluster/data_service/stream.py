"""`Stream`: the batches of a share, which a data worker reads ahead for one reader."""

import json
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from monolith.cluster.data_service.batch_codec import batch_to_value
from monolith.data import Batch

WAIT_SECONDS = 5.0
"""Seconds after which a reader is told that there is no batch yet."""

_WAIT = ("wait",)
_CLOSE_SECONDS = 10.0


class Stream:
    """Reads a share on a thread, at most `ahead` batches beyond those that the reader has.

    Two more are in hand: the next one, and the one after it, which tells whether the next is the
    last. Any thread may call.

    Args:
        open_share: Opens the share; returns its batches, whose iterator has `state_dict`, and
            `close` if need be.
        ahead: Number of batches.

    Attributes:
        num_batches: Number of batches that were read.
    """

    def __init__(self, open_share: Callable[[], Iterable[Batch]], ahead: int) -> None:
        self._open_share, self._ahead = open_share, ahead
        self.num_batches = 0
        self._answers: dict[int, Any] = {}  # number -> answer, or error
        self._taken = 0  # the reader has all answers below
        self._waiting: dict[int, list[tuple[float, Future[Any]]]] = {}
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="monolith-stream", daemon=True)
        self._thread.start()

    def read(self, number: int, taken: int) -> Any:
        """Return answer `number`, or a future of it; the reader has those below `taken`.

        An answer is ("batch", value, position, is_last), ("end",), or ("wait",) if there is none
        yet. An answer can be read again until a later call says that it was taken.

        Raises:
            Exception: The error of the data at this place.
        """
        with self._changed:
            if taken > self._taken:
                for old in [n for n in self._answers if n < taken]:
                    del self._answers[old]
                self._taken = taken
                self._changed.notify_all()
            answer = self._answers.get(number)
            if answer is None and self._is_closing:
                return _WAIT
            if answer is None:
                future: Future[Any] = Future()
                until = time.monotonic() + WAIT_SECONDS
                self._waiting.setdefault(number, []).append((until, future))
                return future
        if isinstance(answer, Exception):
            raise answer
        return answer

    def tick(self, now: float) -> None:
        """Tell readers that have waited long enough that there is no batch yet."""
        over = []
        with self._changed:
            for number, waiting in list(self._waiting.items()):
                over += [future for until, future in waiting if now >= until]
                self._waiting[number] = [item for item in waiting if now < item[0]]
        for future in over:
            future.set_result(_WAIT)

    def close(self) -> None:
        """End the thread, and tell readers to ask elsewhere. Closing twice is fine."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self.tick(float("inf"))

    def join(self) -> None:
        """Wait for the end of the thread, after `close`."""
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        last: tuple[Any, str] | None = None
        batches: Any = None
        try:
            batches = iter(self._open_share())
            for batch in batches:
                # Written at once: the iterator goes on, to find out whether this is the last batch.
                state = batches.state_dict()
                read = batch_to_value(batch), json.dumps(state)
                if last is not None and not self._put(("batch", *last, False)):
                    return
                last = read
            if last is not None and not self._put(("batch", *last, True)):
                return
            self._put(("end",))
        except Exception as error:  # the reader gets it
            if last is None or self._put(("batch", *last, False)):
                self._put(error)
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def _put(self, answer: Any) -> bool:
        """Add an answer when there is room for it; whether the stream is still open."""
        with self._changed:
            number = self.num_batches
            self._changed.wait_for(lambda: self._is_closing or number - self._taken < self._ahead)
            if self._is_closing:
                return False
            self._answers[number] = answer
            self.num_batches += 1
            waiting = self._waiting.pop(number, [])
        for _, future in waiting:
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        return True
