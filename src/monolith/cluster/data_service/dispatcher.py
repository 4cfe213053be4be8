"""`DispatcherHost`: knows the data workers, and hands out shares of their data."""

import json
import logging
import threading
from collections.abc import Sequence
from typing import Any

from monolith.cluster.data_service.reading import Reading, check_state
from monolith.cluster.data_service.service_host import ServiceHost
from monolith.cluster.data_service.service_verbs import DISPATCHER_VERBS
from monolith.cluster.job.job_values import Taken, first_difference, is_share
from monolith.errors import AbortedError, FailedPreconditionError, InvalidArgumentError

_log = logging.getLogger(__name__)

_MAX_READINGS = 1024
_MAX_WORKERS = 1 << 16
KIND = "dispatcher"
"""What a dispatcher says that it is."""


class DispatcherHost(ServiceHost):
    """The state of a data service: its workers, their shares, and who reads. Thread-safe.

    The first data worker says which shares the data has; the others must have the same. A data
    worker and a reader are there until their connections end or are silent for the lease.

    Args:
        num_readers: Number of data workers for which the data is divided; more may join.
    """

    def __init__(self, num_readers: int = 1) -> None:
        super().__init__("dispatcher of the data service", DISPATCHER_VERBS, frozenset(_QUICK))
        self.num_readers = num_readers
        self._state_lock = threading.Lock()
        self._workers: dict[int, str] = {}  # client -> address
        self._shares: tuple[list[str], int] | None = None
        self._lines: list[str] = []
        self._readings: dict[str, Reading] = {}

    def status(self) -> dict[str, Any]:
        """Return the numbers of data workers, shares and readings."""
        with self._state_lock:
            readings = self._readings.values()
            return {
                "label": self.label,
                "life": self.life,
                "workers": list(self._workers.values()),
                "shares": 0 if self._shares is None else len(self._shares[0]),
                "readings": len(readings),
                "returned_shares": sum(reading.num_returned for reading in readings),
            }

    def release_client(self, client: int, *, is_gone: bool = False) -> None:
        """Forget a data worker or a reader that is gone; its shares go to others."""
        super().release_client(client, is_gone=is_gone)
        with self._state_lock:
            address = self._workers.pop(client, None)
            if address is not None:
                _log.warning("data worker %s is gone; %d are left", address, len(self._workers))
            for reading in self._readings.values():
                reading.leave(client)

    def _do_describe_service(self, client: int) -> dict[str, Any]:
        return {"kind": KIND, "num_readers": self.num_readers}

    def _do_join_service(
        self, client: int, address: str, names: str, num_epochs: int, facts: str
    ) -> None:
        shares, lines = _texts("names", names), _texts("facts", facts)
        with self._state_lock:
            if self._shares is None:
                self._shares, self._lines = (shares, num_epochs), lines
            difference = first_difference(
                {"facts": self._lines, "shares": self._shares[0], "epochs": [self._shares[1]]},
                {"facts": lines, "shares": shares, "epochs": [num_epochs]},
            )
            if difference is not None:
                ours, theirs = difference
                raise InvalidArgumentError(
                    "[DispatcherHost.join_service] expected the data of the first data worker, "
                    f"with {ours!r:.300}, got {theirs!r:.300} ({address}); start all data workers "
                    "with the same task, data and settings, or the dispatcher anew"
                )
            for other in [c for c, place in self._workers.items() if place == address]:
                del self._workers[other]  # an earlier start of the same worker
            if len(self._workers) >= _MAX_WORKERS:
                raise FailedPreconditionError(
                    f"[DispatcherHost.join_service] expected at most {_MAX_WORKERS} data workers, "
                    "got one more"
                )
            self._workers[client] = address
            _log.warning("data worker %s is there; %d in all", address, len(self._workers))

    def _do_data_workers(self, client: int) -> list[str]:
        with self._state_lock:
            return list(self._workers.values())

    def _do_data_shares(self, client: int) -> tuple[str, int] | None:
        with self._state_lock:
            return None if self._shares is None else (json.dumps(self._shares[0]), self._shares[1])

    def _do_open_reading(self, client: int, reading: str, state: str) -> bool:
        """Join a reading, made if there is none; False while no data worker has joined."""
        value = _parsed("state", state)
        checked = None if value is None else check_state(value)
        with self._state_lock:
            if self._shares is None:
                return False
            if reading not in self._readings:
                self._make_room()
                self._readings[reading] = Reading(*self._shares, checked)
            self._readings[reading].join(client)
            return True

    def _make_room(self) -> None:
        """Drop the oldest readings without a reader while there are too many. Locked."""
        idle = [name for name, reading in self._readings.items() if not reading.num_readers]
        while len(self._readings) >= _MAX_READINGS:
            if not idle:
                raise FailedPreconditionError(
                    f"[DispatcherHost.open_reading] expected at most {_MAX_READINGS} readings at "
                    "once, got one more; start another dispatcher"
                )
            del self._readings[idle.pop(0)]

    def _do_take_data(self, client: int, reading: str, wants: int, report: str) -> Any:
        """Note a report of a reader, and return a share if it wants one; None if it is unknown."""
        ended, positions = _checked_report(report)
        with self._state_lock:
            found = self._readings.get(reading)
            if found is None:
                return None
            try:
                found.report(client, ended, positions)
                taken = found.take(client) if wants else Taken("wait")
            except AbortedError:
                return None
        return taken.kind, taken.share, json.dumps(taken.position)


_QUICK = frozenset(DISPATCHER_VERBS) - {"join_service"}


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"[DispatcherHost] expected {name} as JSON, got {text[:100]!r}"
        ) from error


def _texts(name: str, text: str) -> list[str]:
    value = _parsed(name, text)
    if type(value) is not list or not all(type(item) is str for item in value):
        raise InvalidArgumentError(f"[DispatcherHost] expected {name} as a list of texts")
    return value


def _checked_report(text: str) -> tuple[Sequence[str], dict[str, Any]]:
    value = _parsed("report", text)
    is_pair = type(value) is list and [type(part) for part in value] == [list, dict]
    if not is_pair or not all(map(is_share, [*value[0], *value[1]])):
        raise InvalidArgumentError(
            "[DispatcherHost.take_data] expected a list of shares that have ended and a dict of "
            f"positions, got {text[:100]!r}"
        )
    return value[0], value[1]
