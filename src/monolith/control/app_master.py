"""`AppMaster`: the application master of Primus, which runs a job on YARN or Kubernetes."""

import logging
import time
from collections.abc import Callable
from typing import Any

from monolith.control.grpc_extra import load_grpc
from monolith.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    UnavailableError,
)
from monolith.util.waiting import check_timeout

_log = logging.getLogger(__name__)

CALL_SECONDS = 10.0
"""Seconds that a call waits for its answer."""

POLL_SECONDS = 5.0
"""Seconds between two looks at a savepoint."""

SAVEPOINT_SECONDS = 3600.0
"""Seconds until a savepoint that is neither made nor refused counts as failed."""

GRACEFUL_SHUTDOWN_MS = 20_000
_KILLED_STATUS = 1
_LOG_SECONDS = 60.0


class AppMaster:
    """A client of the application master. Thread-safe.

    Every call has a deadline, so an application master that hangs delays its caller by at most
    `call_seconds`.

    Args:
        channel: Channel of gRPC to the application master; closed by the caller.
        call_seconds: Maximum seconds that a call waits for its answer.

    Raises:
        FailedPreconditionError: gRPC is not installed.
    """

    def __init__(self, channel: Any, *, call_seconds: float = CALL_SECONDS) -> None:
        self._grpc = load_grpc()
        from monolith.control import app_master_pb2, app_master_pb2_grpc

        services: Any = app_master_pb2_grpc
        self._messages: Any = app_master_pb2
        self._stub = services.AppMasterServiceStub(channel)
        self._call_seconds = check_timeout("[AppMaster]", call_seconds)

    def kill(self, reason: str) -> None:
        """Ask the application master to end the application as failed.

        Raises:
            UnavailableError: The application master gave no answer, or an error.
        """
        request = self._messages.KillRequest(exit_code=_KILLED_STATUS, diagnose=reason)
        request.graceful_shutdown_timeout_ms.value = GRACEFUL_SHUTDOWN_MS
        self._call("kill", request)

    def succeed(self) -> None:
        """Ask the application master to end the application as succeeded.

        Raises:
            UnavailableError: The application master gave no answer, or an error.
        """
        request = self._messages.SucceedRequest()
        request.graceful_shutdown_timeout_ms.value = GRACEFUL_SHUTDOWN_MS
        self._call("succeed", request)

    def create_savepoint(
        self,
        path: str,
        *,
        poll_seconds: float = POLL_SECONDS,
        limit_seconds: float = SAVEPOINT_SECONDS,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Let the application master save the position in its data, and wait until it has.

        Args:
            path: Folder of the savepoint.
            poll_seconds: Seconds between two looks.
            limit_seconds: Maximum seconds of the whole wait; `math.inf` has no limit.
            sleep: Waits between two looks.

        Raises:
            UnavailableError: The application master gave no answer, or an error.
            FailedPreconditionError: It refused to begin.
            AbortedError: It began, and failed.
            DeadlineExceededError: It is neither done nor failed after `limit_seconds`.
        """
        check_timeout("[AppMaster.create_savepoint]", limit_seconds)
        begun = self._call(
            "createSavepoint", self._messages.CreateSavepointRequest(savepoint_dir=path)
        )
        if begun.code != 0:
            raise FailedPreconditionError(
                f"[AppMaster.create_savepoint] expected code 0, got {begun.code} ({path}): "
                f"{begun.message}"
            )
        states = self._messages.CreateSavepointStatusResponse
        request = self._messages.CreateSavepointStatusRequest(
            savepoint_restore_id=begun.savepoint_id
        )
        start = last_word = time.monotonic()
        while True:
            status = self._call("createSavepointStatus", request)
            state = status.create_savepoint_state
            if state == states.SUCCEEDED:
                return
            if state not in (states.PENDING, states.RUNNING):
                raise AbortedError(
                    f"[AppMaster.create_savepoint] expected state SUCCEEDED, got "
                    f"{_name_of(states, state)} ({path}): {status.message}"
                )
            now = time.monotonic()
            if now - start + poll_seconds > limit_seconds:
                raise DeadlineExceededError(
                    f"[AppMaster.create_savepoint] expected a savepoint within {limit_seconds:g} "
                    f"s, got state {_name_of(states, state)} after {now - start:.0f} s ({path})"
                )
            if now - last_word >= _LOG_SECONDS:
                last_word = now
                _log.info("waiting for the savepoint %s, since %.0f s", path, now - start)
            sleep(poll_seconds)

    def _call(self, name: str, request: Any) -> Any:
        try:
            return getattr(self._stub, name)(request, timeout=self._call_seconds)
        except self._grpc.RpcError as error:
            raise UnavailableError(
                f"[AppMaster.{name}] expected an answer of the application master within "
                f"{self._call_seconds:g} s, got {error.code().name}: {error.details()}"
            ) from error


def _name_of(states: Any, state: int) -> str:
    names = {number: name for name, number in states.CreateSavepointState.items()}
    return str(names.get(state, state))
