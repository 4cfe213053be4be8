"""`ServiceSource`: the batches of a data service, as the source of a trainer."""

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from monolith.cluster.data_service.open_share import ServedBatch
from monolith.cluster.data_service.reading import check_state, digest_of
from monolith.cluster.data_service.served_batches import ServedBatches, ShareQueue
from monolith.cluster.data_service.service_clients import ServiceClients, ServiceOptions
from monolith.cluster.job.job_values import Taken, name_of, share_of
from monolith.data import Batch
from monolith.data.shares.share_names import WholeShare
from monolith.errors import AbortedError, FailedPreconditionError, UnavailableError

_FORMAT = "data_service"


class ReadingQueue(ShareQueue):
    """The shares of a reading, which the dispatcher hands out.

    Args:
        clients: Connections of the trainer.
        shares: Names of the shares of an epoch, and the number of epochs.
        state: Where the reading goes on; None begins it.
        name: Name of a reading that several trainers share; None makes one of this trainer alone.
        tell: Called on a thread of a connection when an answer is there.
    """

    def __init__(
        self,
        clients: ServiceClients,
        shares: tuple[Sequence[str], int],
        state: dict[str, Any] | None,
        name: str | None,
    ) -> None:
        names, self._num_epochs = shares
        self._clients, self._is_shared = clients, name is not None
        self._name = name or _new_name()
        self._names = {share: number for number, share in enumerate(names)}
        self._digest = digest_of(list(names))
        self._whole = share_of(0, str(WholeShare())) if is_whole(names) else None
        self._next = 0 if state is None else state["next"]
        self._positions: dict[str, Any] = {} if state is None else dict(state["open"])
        self._whole_position = self._positions.get(self._whole) if self._whole else None
        self._own: set[str] = set()
        self._ended: list[str] = []
        self._asked: Future[Any] | None = None
        self._since = 0.0
        self._begin(state)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._own.clear()
        self._clients.dispatcher.call(
            "open_reading",
            self._name,
            json.dumps(state),
            seconds=self._clients.options.timeout_seconds,
        )

    def take(self) -> Taken | None:
        """Return a share, or None while the dispatcher has not answered.

        Raises:
            UnavailableError: The dispatcher does not answer within the limit.
            AbortedError: The dispatcher has forgotten a reading that several trainers share.
        """
        if self._asked is None:
            positions = self._positions if self._is_shared else {}
            report = json.dumps([self._ended, positions])
            self._ended = []
            self._asked = self._clients.dispatcher.start("take_data", self._name, 1, report)
            self._since = time.monotonic()
        if not self._asked.done():
            limit = self._clients.options.timeout_seconds
            if time.monotonic() - self._since > limit:
                raise UnavailableError(
                    f"[data service] expected an answer to 'take_data' within {limit:g} seconds, "
                    f"got none: {self._clients.dispatcher.state_text()}"
                )
            return None
        asked, self._asked = self._asked, None
        answer = asked.result()
        if answer is None:
            self._begin_again()
            return Taken("wait")
        kind, share, position = answer
        taken = Taken(kind, share, json.loads(position))
        if kind == "share":
            self._own.add(share)
            self._positions[share] = taken.position
            epoch, name = name_of(share)
            number = epoch * len(self._names) + self._names.get(name, -1) + 1
            self._next = max(self._next, number)
        return taken

    def _begin_again(self) -> None:
        """Tell a dispatcher that has started again, or has given this reader up, where we are."""
        if self._is_shared:
            raise AbortedError(
                f"[data service] expected the reading {self._name!r}, got a dispatcher that does "
                f"not know this reader of it ({self._clients.dispatcher.label}): it has started "
                "again, or this trainer was silent; start all trainers of the reading again"
            )
        self._clients.shares()  # waits until data workers have joined again
        positions = {s: p for s, p in self._positions.items() if s not in self._own}
        own = {s: self._positions[s] for s in self._own}
        # The old reading has what was open here at its begin, and would hand it out again.
        self._name = _new_name()
        self._begin({"names": self._digest, "next": self._next, "open": positions})
        self._own = set(own)

    def has(self, share: str) -> bool:
        """Whether the share is this reader's: the dispatcher takes none away."""
        return True

    def note_batch(self, served: ServedBatch) -> None:
        """Note the position after a batch that was given out."""
        self._positions[served.share] = served.position
        if served.share == self._whole:
            self._whole_position = served.position

    def note_end(self, share: str, *, has_given: bool) -> None:
        """Note that a share was read to its end."""
        self._positions.pop(share, None)
        self._own.discard(share)
        self._ended.append(share)

    def state(self) -> Any:
        """Return the position after the last batch.

        If the whole source is one share, this is the position in the source, as without a service.
        """
        if self._is_shared:
            return {_FORMAT: 1, "reading": self._name}
        if self._whole is not None:
            return self._whole_position
        state = {"names": self._digest, "next": self._next, "open": dict(self._positions)}
        return {_FORMAT: 1, **state}


class ServiceSource(Iterable[Batch]):
    """The batches that the data workers of a service read, for a trainer.

    Data workers read and parse the data, in other processes and on other machines. Every
    iteration is a reading of its own, unless it has a name, which divides the data among the
    trainers that use it.

    Args:
        options: How to read, with the address of the dispatcher.
        reading: Name of a reading that several trainers share.

    Example:
        >>> source = ServiceSource(ServiceOptions("127.0.0.1:5050"))
        >>> source.options.dispatcher
        '127.0.0.1:5050'
    """

    def __init__(self, options: ServiceOptions, *, reading: str | None = None) -> None:
        self.options, self._reading = options, reading

    def __iter__(self) -> ServedBatches:
        return self._opened(lambda names: None)

    def resume(self, position: Any) -> ServedBatches:
        """Return an iterator that goes on after the batch at which `state_dict` was called.

        Raises:
            FailedPreconditionError: The position is that of a shared reading, of other data, or of
                a run without a service while the service divides the data.
        """
        return self._opened(lambda names: _state_of(position, names))

    def _opened(self, state_of: Any) -> ServedBatches:
        clients = ServiceClients(self.options)
        try:
            shares = clients.shares()
            queue = ReadingQueue(clients, shares, state_of(shares[0]), self._reading)
            return ServedBatches(clients, queue)
        except BaseException:
            clients.close()
            raise


def _new_name() -> str:
    return f"reading {secrets.token_hex(16)}"


def is_whole(names: Sequence[str]) -> bool:
    """Whether the only share is the whole source."""
    return list(names) == [str(WholeShare())]


def _state_of(position: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the state of a reading that goes on at a position."""
    is_ours = isinstance(position, dict) and position.get(_FORMAT) == 1
    if is_ours and "reading" in position:
        raise FailedPreconditionError(
            f"[ServiceSource.resume] expected a position, got the reading {position['reading']!r} "
            "that several trainers share: it has none for one of them; begin without --resume"
        )
    if is_ours:
        return check_state({name: position[name] for name in position if name != _FORMAT})
    if not is_whole(names):
        raise FailedPreconditionError(
            "[ServiceSource.resume] expected a position of this data service, which divides the "
            f"data into {len(names)} shares, got the position of a run that read the whole source; "
            "go on without --data-service, or with a dispatcher of one reader (--workers 1)"
        )
    return {
        "names": digest_of(list(names)),
        "next": 1,
        "open": {share_of(0, names[0]): position},
    }
