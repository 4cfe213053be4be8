"""`RankWatch`: tell all ranks why one of them failed, and find the rank that is gone."""

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from torch._C._distributed_c10d import Store

BEAT_SECONDS = 0.5
"""Seconds between two signs of life of a rank."""

_SILENT_SECONDS = 4 * BEAT_SECONDS  # without a sign of life, until a rank counts as gone
_LEAVE_SECONDS = 5.0  # that the rank with the store waits for the others after a failure
_ANSWER_SECONDS = 10.0  # until a store without an answer counts as gone
_REASON, _NOTHING = "reason", ""

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class RankWatch:
    """Writes signs of life of this rank to the store of the ranks, and reads why a rank failed.

    A sign of life has the number of collectives that this rank has begun by channel, so that a rank
    that is late can be told from one that is gone. Any thread may call at any time.

    Args:
        store: store of the ranks.
        rank: number of this rank.
        size: number of ranks.
        is_host: whether the store ends with this process.

    Attributes:
        begun: channel -> number of collectives that this rank has begun.
        reason: why the ranks end before their end; None while no rank has failed.
        on_failure: called once on the thread of the watch, when a rank has failed.
    """

    def __init__(self, store: Store, rank: int, size: int, *, is_host: bool) -> None:
        self._store, self._rank, self._size, self._is_host = store, rank, size, is_host
        self._is_store_silent = False
        self.begun: dict[str, int] = {}
        self.reason: str | None = None
        self.on_failure: Callable[[], object] = lambda: None
        self._has_left = False
        self._stop = threading.Event()
        self._number = 0
        self._beat()
        self._thread = threading.Thread(target=self._run, name="rank watch", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        self._number += 1
        beat = {"number": self._number, "left": self._has_left, "begun": self.begun}
        self._store.set(f"beat/{self._rank}", json.dumps(beat))

    def _run(self) -> None:
        is_told = False
        while not self._stop.wait(BEAT_SECONDS):
            is_last = False
            try:
                self._beat()
                self._read_reason()
            except RuntimeError as error:  # the store ends with its process
                is_last = True
                if self.reason is None and not self._stop.is_set():
                    self.reason = self._words_without_store(error)
            if self.reason is not None and not is_told:
                is_told = True
                self.on_failure()
            if is_last:
                return

    def _words_without_store(self, error: BaseException) -> str:
        _log.debug("the store of the ranks is gone: %s", error)
        return "rank 0 is gone or stands still, or the process that has the store of the ranks"

    def _read_reason(self) -> None:
        if self.reason is None and self._store.check([_REASON]):
            self.reason = self._store.get(_REASON).decode()

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """Return what a call of the store returns, whose process may stand still.

        Raises:
            RuntimeError: the store is gone, or gives no answer in time.
        """
        if self._is_store_silent:
            raise RuntimeError("the store gives no answer")
        answers = queue.SimpleQueue[Any]()

        def run() -> None:
            try:
                answers.put((call(), None))
            except RuntimeError as error:
                answers.put((None, error))

        threading.Thread(target=run, name="store of the ranks", daemon=True).start()
        try:
            answer, error = answers.get(timeout=_ANSWER_SECONDS)
        except queue.Empty:
            self._is_store_silent = True
            raise RuntimeError(f"the store gave no answer for {_ANSWER_SECONDS:g} s") from None
        if error is not None:
            raise error
        result: Answer = answer
        return result

    def tell(self, reason: str) -> str:
        """Tell all ranks why they end; return the reason of the first rank that told one."""
        try:
            first = self._ask(lambda: self._store.compare_set(_REASON, _NOTHING, reason))
            self.reason = first.decode() or reason
        except RuntimeError as error:
            self.reason = self.reason or self._words_without_store(error)
        return self.reason

    def explain(self, channel: str, error: object) -> str:
        """Return why a collective of a channel did not end, and tell all ranks.

        Args:
            channel: name of the channel.
            error: error of the collective, or the limit that was reached.
        """
        if self.reason is not None:
            return self.reason
        gone = self.silent_ranks()
        if self.reason is not None:
            return self.reason
        if gone:
            return self.tell(f"{_named(gone)} gave no sign of life for {_SILENT_SECONDS:g} s")
        try:
            late = self.late_ranks(channel)
        except RuntimeError as lost:
            return self.tell(self._words_without_store(lost))
        own = self.begun.get(channel, 0)
        if late:
            return self.tell(
                f"{_named(late)} did not come to collective {own} of {channel}: {error}"
            )
        return self.tell(f"collective {own} of {channel} failed in rank {self._rank}: {error}")

    def late_ranks(self, channel: str) -> list[int]:
        """Return the ranks that have not come to the last collective of this rank in a channel.

        Raises:
            RuntimeError: the store is gone, or gives no answer in time.
        """
        own = self.begun.get(channel, 0)
        return [r for r, beat in self._beats().items() if beat["begun"].get(channel, 0) < own]

    def silent_ranks(self) -> list[int]:
        """Return the ranks that give no sign of life for a while; none if the reason is known."""
        try:
            before = self._beats()
            end = time.monotonic() + _SILENT_SECONDS
            while time.monotonic() < end and self.reason is None:
                self._stop.wait(BEAT_SECONDS / 4)
                self._ask(self._read_reason)
            after = self._beats()
        except RuntimeError as lost:
            self.reason = self.reason or self._words_without_store(lost)
            return []
        others = [rank for rank in before if rank != self._rank]
        return [r for r in others if before[r]["number"] == after[r]["number"]]

    def _beats(self) -> Mapping[int, dict[str, Any]]:
        names = [f"beat/{rank}" for rank in range(self._size)]
        values = self._ask(lambda: self._store.multi_get(names))
        return {rank: json.loads(bytes(value)) for rank, value in enumerate(values)}

    def close(self) -> None:
        """End the thread; after a failure, keep the store until the other ranks know the reason."""
        self._has_left = True
        try:
            self._ask(self._beat)
            end = time.monotonic() + _LEAVE_SECONDS
            if self._is_host and self.reason is not None:
                while time.monotonic() < end and not self._have_left(self._beats()):
                    self._stop.wait(BEAT_SECONDS / 4)
        except RuntimeError as error:
            _log.debug("the store of the ranks is gone: %s", error)
        self._stop.set()
        self._thread.join(_ANSWER_SECONDS)

    def _have_left(self, beats: Mapping[int, dict[str, Any]]) -> bool:
        return all(beat["left"] for beat in beats.values())


def _named(ranks: Iterable[int]) -> str:
    """Return the names of ranks.

    Example:
        >>> _named([1]), _named([0, 2])
        ('rank 1', 'ranks 0, 2')
    """
    numbers = [str(rank) for rank in ranks]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
