"""`ServiceClients`: a trainer's connections to a dispatcher and to its data workers."""

import json
import logging
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monolith.cluster.data_service.service_caller import ServiceCaller
from monolith.cluster.zmq.client_loop import ClientLoop
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.errors import InvalidArgumentError, MonolithError, UnavailableError

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_LIST_SECONDS = 0.5  # between two questions for the data workers
_AVOID_SECONDS = 5.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class ServiceOptions:
    """How a trainer reads from a data service.

    Args:
        dispatcher: Address of the dispatcher, as `host:port`.
        keys: CURVE keys of the job; None for a service without keys.
        window: Number of batches that are asked for ahead, for each share that is read.
        max_streams: Number of shares that are read at once; fewer if there are fewer data workers.
        away_seconds: Seconds without a connection after which another data worker reads on.
        silent_seconds: Seconds without an answer after which another data worker reads on.
        timeout_seconds: Seconds to wait for the dispatcher, or for a data worker that answers.
    """

    dispatcher: str
    keys: CurveKeys | None = None
    window: int = 2
    max_streams: int = 16
    away_seconds: float = 2.0
    silent_seconds: float = 30.0
    timeout_seconds: float = 120.0

    def __post_init__(self) -> None:
        for name in ("window", "max_streams"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(
                    f"[ServiceOptions] expected {name} >= 1, got {getattr(self, name)}"
                )
        for name in ("away_seconds", "silent_seconds", "timeout_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(
                    f"[ServiceOptions] expected {name} > 0, got {getattr(self, name)}"
                )


class ServiceClients:
    """The dispatcher and the data workers, as a trainer reaches them. One thread calls.

    Args:
        options: How to read.

    Attributes:
        dispatcher: Calls the dispatcher.

    Raises:
        UnavailableError: The dispatcher does not answer within the limit.
        InvalidArgumentError: The process at the address is no dispatcher.
    """

    def __init__(self, options: ServiceOptions) -> None:
        self.options = options
        self._loop = ClientLoop()
        self._callers: dict[str, ServiceCaller] = {}
        self._uses: Counter[str] = Counter()  # address -> shares that are open there
        self._avoided: dict[str, float] = {}  # address -> until when
        self._addresses: list[str] = []
        self._listing: Future[Any] | None = None
        self._last_list = 0.0
        try:
            self.dispatcher = ServiceCaller(
                self._loop, options.dispatcher, "the dispatcher of the data service", options.keys
            )
            self._check()
        except BaseException:
            self._loop.close()
            raise

    def _check(self) -> None:
        dispatcher, seconds = self.dispatcher, self.options.timeout_seconds
        try:
            facts = dispatcher.call("describe_service", seconds=seconds)
        except UnavailableError:
            raise
        except MonolithError as error:
            raise InvalidArgumentError(
                f"[data service] expected a dispatcher at {dispatcher.address}, got: {error}; give "
                "the address of `monolith data-service dispatcher`"
            ) from error
        kind = facts.get("kind") if isinstance(facts, dict) else None
        if kind != "dispatcher":
            raise InvalidArgumentError(
                f"[data service] expected a dispatcher at {dispatcher.address}, got a {kind}; give "
                "the address of `monolith data-service dispatcher`"
            )

    def shares(self) -> tuple[list[str], int]:
        """Return the names of the shares of an epoch and the number of epochs, -1 without an end.

        Raises:
            UnavailableError: No data worker has joined within the limit.
        """
        end = time.monotonic() + self.options.timeout_seconds
        while (found := self.dispatcher.call("data_shares")) is None:
            if time.monotonic() > end:
                raise UnavailableError(self.no_worker_text())
            time.sleep(_POLL_SECONDS)
        names, num_epochs = found
        return json.loads(names), num_epochs

    def no_worker_text(self) -> str:
        """Return the text of the error that there is no data worker."""
        return (
            f"[data service] expected a data worker within {self.options.timeout_seconds:g} "
            f"seconds, got {len(self._addresses)} that the dispatcher knows and none that answers "
            f"({self.dispatcher.state_text()}); start `monolith data-service worker TASK "
            f"--dispatcher {self.dispatcher.address.removeprefix('tcp://')}`"
        )

    def refresh(self) -> None:
        """Ask for the data workers, and take the last answer; waits for nothing."""
        if self._listing is not None and self._listing.done():
            listing, self._listing = self._listing, None
            if listing.exception() is None:
                self._addresses = list(listing.result())
        now = time.monotonic()
        if self._listing is None and now - self._last_list >= _LIST_SECONDS:
            self._last_list = now
            self._listing = self.dispatcher.start("data_workers")

    @property
    def num_usable(self) -> int:
        """Number of data workers that are not avoided."""
        return len(self._usable())

    def _usable(self) -> list[str]:
        now = time.monotonic()
        return [a for a in self._addresses if self._avoided.get(a, 0.0) <= now]

    def worker(self, loads: dict[str, int]) -> ServiceCaller | None:
        """Return the data worker with the fewest streams of this trainer; None without any.

        The caller says `leave` when it reads there no more.

        Args:
            loads: Address -> number of streams.
        """
        addresses = self._usable()
        if not addresses:
            return None
        address = min(addresses, key=lambda each: loads.get(each, 0))
        if address not in self._callers:
            self._callers[address] = ServiceCaller(
                self._loop, address, "data worker", self.options.keys
            )
        self._uses[address] += 1
        return self._callers[address]

    def leave(self, caller: ServiceCaller, *, is_lost: bool = False) -> None:
        """Note that a share is not read at a data worker any more.

        One that does not answer is avoided for a while. Its connection is closed with its last
        share: others may have answers.
        """
        address = caller.address
        self._uses[address] -= 1
        if is_lost:
            self._avoided[address] = time.monotonic() + _AVOID_SECONDS
            if not self._uses[address]:
                self._callers.pop(address, None)
                caller.close()

    def close(self) -> None:
        """Close all connections. Closing twice is fine."""
        for caller in [*self._callers.values(), self.dispatcher]:
            caller.close()
        self._callers.clear()
        self._loop.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
