"""`Channel`: the collectives of one thread of all ranks, in one order, with waits that end.

`CardChannel` is one whose tensors go from card to card.
"""

import ctypes
import datetime
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from monolith.cluster.ranks.rank_watch import RankWatch
from monolith.cluster.wire.value_codec import bytes_of, decode, encode
from monolith.errors import CancelledError, UnavailableError

_TURN_SECONDS = 0.5  # between two looks whether another rank has failed
_WORD_SECONDS = 60.0  # between two lines of the log about a wait
_PATIENT_SECONDS = 7200.0  # limit on the wait for ranks that are late and give signs of life

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 2e-4  # between two looks whether a card has done a collective


class Channel:
    """A process group whose collectives all ranks begin in the same order, each on one thread.

    A wait ends when the collective ends, when a rank has failed, when `cancel` was called, or after
    `wait_seconds`. A channel of one rank copies.

    Args:
        name: name of the channel, for messages.
        backend: process group of torch; None for a single rank.
        watch: says why a collective does not end.
        place: number of this rank, and the number of ranks.
        wait_seconds: longest wait for the other ranks.
        is_patient: whether to wait longer, for 2 hours, for ranks that are late and give signs of
            life, such as for rank 0 while it saves.

    Attributes:
        num_bytes: number of bytes that this rank has sent to others.
        seconds: seconds that this rank has waited.
        transport: library that carries the tensors.
    """

    transport = "gloo"

    def __init__(
        self,
        name: str,
        backend: Any,
        watch: RankWatch | None,
        place: tuple[int, int],
        wait_seconds: float,
        *,
        is_patient: bool = False,
    ) -> None:
        self.name, self._backend, self._watch = name, backend, watch
        self.rank, self.size = place
        self._wait_seconds, self._is_patient = wait_seconds, is_patient
        self.num_bytes, self.seconds = 0, 0.0
        self._is_cancelled = False

    def cancel(self) -> None:
        """End the waits of this rank with `CancelledError`. The channel is of no use afterwards."""
        self._is_cancelled = True
        self._keep()

    def all_to_all(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        received_sizes: Sequence[int],
        sent_sizes: Sequence[int],
    ) -> None:
        """Send a part of a tensor to each rank, and receive a part from each.

        Args:
            received: flat tensor for the parts of all ranks, in their order.
            sent: flat tensor of the same dtype.
            received_sizes: number of elements from each rank.
            sent_sizes: number of elements to each rank.
        """
        if self._backend is None:
            received.copy_(sent)
            return
        sizes = list(received_sizes), list(sent_sizes)
        self.num_bytes += (sent.numel() - sent_sizes[self.rank]) * sent.element_size()
        options = dist.AllToAllOptions()
        self._run(lambda: self._backend.alltoall_base(received, sent, *sizes, options))

    def begin_all_reduce(self, values: torch.Tensor) -> Callable[[], None]:
        """Begin to add up a tensor over all ranks, in place; return the function that waits."""
        if self._backend is None:
            return lambda: None
        self.num_bytes += values.numel() * values.element_size()
        work = self._begin(lambda: self._backend.allreduce([values], dist.AllreduceOptions()))
        return lambda: self._wait(work)

    def broadcast(self, values: torch.Tensor, root: int = 0) -> None:
        """Give all ranks the tensor of one of them, in place."""
        if self._backend is None:
            return
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._run(lambda: self._backend.broadcast([values], options))

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order; plain values and tensors.

        Every rank waits for all others, so this is a barrier too.
        """
        if self._backend is None:
            return [value]
        packed = _packed(value)
        sizes = torch.empty(self.size, dtype=torch.int64, device="cpu")
        ones, own = [1] * self.size, torch.full_like(sizes, packed.numel())
        self.all_to_all(sizes, own, ones, ones)
        lengths = sizes.tolist()
        received = torch.empty(sum(lengths), dtype=torch.uint8, device="cpu")
        self.all_to_all(received, packed.repeat(self.size), lengths, [packed.numel()] * self.size)
        return [_unpacked(part) for part in torch.split_with_sizes(received, lengths)]

    def share(self, value: Any) -> Any:
        """Return the value of rank 0; those of other ranks do not count."""
        return self.gather(value if self.rank == 0 else None)[0]

    def _run(self, begin: Callable[[], Any]) -> None:
        self._wait(self._begin(begin))

    def _begin(self, begin: Callable[[], Any]) -> Any:
        assert self._watch is not None
        self._watch.begun[self.name] = self._watch.begun.get(self.name, 0) + 1
        try:
            return begin()
        except RuntimeError as error:
            raise self._lost(error) from error

    def _wait(self, work: Any) -> None:
        assert self._watch is not None
        start = limit_start = told = time.monotonic()
        while not self._has_ended(work, min(_TURN_SECONDS, self._wait_seconds)):
            if self._is_cancelled:
                self._keep()
                raise CancelledError(f"[Channel] the collectives of {self.name} were cancelled")
            if self._watch.reason is not None:
                raise self._lost(self._watch.reason)
            now = time.monotonic()
            if now - limit_start > self._wait_seconds:
                self._check_patience(now - start)
                limit_start = time.monotonic()
            if now - told > _WORD_SECONDS:
                told = now
                _log.info("waiting for other ranks in %s, since %.0f s", self.name, now - start)
        self.seconds += time.monotonic() - start

    def _check_patience(self, seconds: float) -> None:
        """Raise the error of a wait that has lasted too long, for the ranks that are late."""
        assert self._watch is not None
        if not self._is_patient or self._watch.silent_ranks():
            raise self._lost(f"no end within {self._wait_seconds:g} s")
        if seconds > _PATIENT_SECONDS:
            raise self._lost(f"no end within {_PATIENT_SECONDS:g} s")

    def _has_ended(self, work: Any, seconds: float) -> bool:
        """Wait for at most some seconds; return whether the collective has ended."""
        try:
            work.wait(datetime.timedelta(seconds=seconds))
        except RuntimeError as error:
            if work.is_completed() and not work.is_success():
                raise self._lost(error) from error
            return False
        return True

    def _lost(self, error: object) -> UnavailableError:
        assert self._watch is not None
        self._keep()
        return UnavailableError(
            lost_text(self._watch.explain(self.name, error), self.rank, self.size)
        )

    def _keep(self) -> None:
        """Keep the process group alive: its end would wait for the collective that does not end."""
        if self._backend is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._backend))


def lost_text(reason: str, rank: int, size: int) -> str:
    """Return the text of the error with which a rank ends because of another one."""
    return (
        f"[RankGroup] expected all {size} ranks to go on, got their end: {reason} (rank {rank}); "
        "start all ranks again, from the newest checkpoint"
    )


class CardChannel(Channel):
    """A channel of nccl: its tensors are on cards, of which each rank has one of its own.

    The wait of nccl only orders the streams of the card, so that a rank that is gone would never be
    noticed. This one looks until the card has done the collective.
    """

    transport = "nccl"

    def _has_ended(self, work: Any, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not work.is_completed():
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_SECONDS)
        return super()._has_ended(work, seconds)


def _packed(value: Any) -> torch.Tensor:
    """Return a value as uint8: number of columns, sizes of body and columns, and their bytes."""
    body, columns = encode(value)
    parts = [memoryview(body), *(bytes_of(column) for column in columns)]
    sizes = np.array([len(parts), *(part.nbytes for part in parts)], dtype=np.int64)
    return torch.frombuffer(bytearray(b"".join([sizes.tobytes(), *parts])), dtype=torch.uint8)


def _unpacked(values: torch.Tensor) -> Any:
    data = memoryview(values.numpy().tobytes())
    num_parts = int(np.frombuffer(data[:8], dtype=np.int64)[0])
    start = 8 * (num_parts + 1)
    sizes = np.frombuffer(data[8:start], dtype=np.int64).tolist()
    parts = []
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    return decode(parts[0], parts[1:])
