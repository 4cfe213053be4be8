"""A lease lets one run at a time save into a directory of a store, which has no locks.

The lease is a small file that its run renews. A run that finds a lease waits for a renewal: if one
comes, another run is alive, and the new run is refused; if none comes for the time of the lease,
that run is dead, and the new run takes the lease over. Clocks of machines are not compared.
"""

import contextlib
import json
import logging
import os
import posixpath
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

from monolith.checkpoint.storage import storage_errors
from monolith.errors import FailedPreconditionError
from monolith.util.stores import open_store

_log = logging.getLogger(__name__)

LEASE_FILE = ".run.lease"

_JOIN_SECONDS = 5.0  # that the end of a run waits for a renewal that hangs


class Lease:
    """The right of one run to save into a directory of a store.

    Args:
        directory: Directory of a store.
        clock: Seconds since 1970, which the file tells readers.
        wait: Function that waits for some seconds.

    Attributes:
        seconds: Time without a renewal after which another run takes the lease over.
        poll_seconds: Time between two looks at the lease of another run.
    """

    seconds = 60.0
    poll_seconds = 2.0

    def __init__(
        self,
        directory: str,
        clock: Callable[[], float] = time.time,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._directory, self._clock, self._wait = directory, clock, wait
        self.path = posixpath.join(directory, LEASE_FILE)
        self._store, self._inner = open_store(self.path)
        self._token, self._num_renewals = uuid.uuid4().hex, 0
        self._new_owner: str | None = None

    def acquire(self) -> None:
        """Take the lease; waits while another run has it that may be dead.

        Raises:
            FailedPreconditionError: another run renews its lease, or takes it at this moment.
            OpError: the directory cannot be written.
        """
        with storage_errors("CheckpointHook", f"write {self.path}"):
            other = self._read()
            is_left = other is not None and self._await_expiry(other)
            try:
                self._store.create_file(self._inner, self._text())
            except FileExistsError as error:
                raise self._refusal(self._read()) from error
            try:
                if is_left:  # another run may take over the same lease at this moment
                    self._wait(self.poll_seconds)
                if not self._is_ours(current := self._read()):
                    raise self._refusal(current)
            except BaseException:  # such as Ctrl-C
                with contextlib.suppress(OSError):
                    self.release()
                raise

    def renew(self) -> None:
        """Tell other runs that this one is alive, and notice a run that has taken the lease over.

        Raises:
            OSError: the store cannot be reached; the lease stays until its time is over.
        """
        current = self._read()
        self._num_renewals += 1
        if current is None:  # an operator has deleted the file
            with contextlib.suppress(FileExistsError):
                self._store.create_file(self._inner, self._text())
        elif self._is_ours(current):
            self._store.pipe_file(self._inner, self._text())
        else:
            self._new_owner = _owner_of(current)

    def check(self) -> None:
        """Raise an error if another run was seen to have taken the lease over.

        Raises:
            FailedPreconditionError: another run saves into the directory.
        """
        if self._new_owner is not None:
            raise FailedPreconditionError(
                f"[CheckpointHook] expected the lease of this run at {self.path}, got that of "
                f"{self._new_owner}, which took it over after {self.seconds:g} s without a "
                "renewal; this run ends without another save"
            )

    def release(self) -> None:
        """Give the lease back, if this run still has it.

        Raises:
            OSError: the store cannot be reached.
        """
        if self._is_ours(self._read()):
            self._store.rm(self._inner)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have the lease for the time of the block: a thread renews it."""
        self.acquire()
        is_over = threading.Event()
        thread = threading.Thread(
            target=self._keep, args=(is_over,), name="monolith-lease", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            self._end(thread)

    def _end(self, thread: threading.Thread) -> None:
        thread.join(_JOIN_SECONDS)
        try:
            if thread.is_alive():
                raise TimeoutError("a renewal hangs")
            self.release()
        except OSError as error:
            _log.warning(
                "the lease %s stays (%s); the next run waits %g s before it saves there",
                self.path,
                error,
                self.seconds,
            )

    def _keep(self, is_over: threading.Event) -> None:
        while self._new_owner is None and not is_over.wait(self.seconds / 4):
            try:
                self.renew()
            except OSError as error:
                _log.warning("the lease %s is not renewed: %s", self.path, error)
        if self._new_owner is not None:
            _log.error("%s has taken over the lease %s", self._new_owner, self.path)

    def _await_expiry(self, other: bytes) -> bool:
        """Wait until a lease is gone, or its time is over without a renewal.

        Returns:
            Whether the lease was left behind and is removed now.
        """
        seconds = float(_facts(other).get("seconds", self.seconds))
        _log.warning(
            "%s has the lease %s; waiting up to %g s for a sign that it still runs. If you know "
            "that it does not, delete that file",
            _owner_of(other),
            self.path,
            seconds,
        )
        waited = 0.0
        while waited < seconds:
            self._wait(self.poll_seconds)
            waited += self.poll_seconds
            current = self._read()
            if current is None:
                return False
            if current != other:
                raise self._refusal(current)
        _log.warning("the lease %s was not renewed for %g s; taking it over", self.path, seconds)
        with contextlib.suppress(FileNotFoundError):
            self._store.rm(self._inner)
        return True

    def _refusal(self, other: bytes | None) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"[CheckpointHook] expected one run that saves into {self._directory}, got a second "
            f"beside that of {_owner_of(other)}; choose another folder, or end it"
        )

    def _is_ours(self, text: bytes | None) -> bool:
        return _facts(text).get("token") == self._token

    def _text(self) -> bytes:
        now = datetime.fromtimestamp(self._clock(), timezone.utc)
        facts = {
            "owner": f"process {os.getpid()} on {socket.gethostname()}",
            "renewed": f"{now:%Y-%m-%d %H:%M:%S} UTC",
            "num_renewals": self._num_renewals,
            "seconds": self.seconds,
            "token": self._token,
        }
        return json.dumps(facts, indent=1).encode()

    def _read(self) -> bytes | None:
        try:
            data: bytes = self._store.cat_file(self._inner)
        except FileNotFoundError:
            return None
        return data


def _facts(text: bytes | None) -> dict[str, Any]:
    try:
        facts = json.loads(text or b"{}")
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _owner_of(text: bytes | None) -> str:
    facts = _facts(text)
    return f"{facts.get('owner', 'an unknown run')} (last renewed {facts.get('renewed', 'never')})"
