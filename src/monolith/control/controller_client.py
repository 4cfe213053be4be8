"""Clients of a controller: `ControllerStub` as the reference system has it, `ControllerClient`."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monolith.control.controlled import (
    CALL_SECONDS,
    BarrierAlreadyPlacedError,
    BlockStatus,
    RowValues,
    RunStatus,
    SavedCheckpoint,
    WorkerState,
    WorkerStatus,
)
from monolith.control.controller_server import TOKEN_KEY, TOKEN_PREFIX
from monolith.control.grpc_extra import load_grpc, load_messages
from monolith.control.run_files import ControllerFiles, read_files
from monolith.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnavailableError,
)

if TYPE_CHECKING:
    from typing_extensions import Self

SAVE_SECONDS = 600.0
"""Default deadline of a save."""

_MAX_ANSWER_BYTES = 1 << 28


def open_channel(files: ControllerFiles) -> Any:
    """Return a gRPC channel to a controller, with TLS if its run has a certificate."""
    grpc = load_grpc()
    options = [
        ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if files.certificate:
        credentials = grpc.ssl_channel_credentials(files.certificate.encode())
        return grpc.secure_channel(files.address, credentials, options)
    return grpc.insecure_channel(files.address, options)


class ControllerStub:
    """The calls of the service `Controller`, each with the token of the run and a deadline.

        stub.StopTraining(StopTrainingRequest())       also without a request

    A call that fails raises `grpc.RpcError`.

    Args:
        channel: Channel to the controller.
        token: Token of the run.
    """

    def __init__(self, channel: Any, token: str = "") -> None:
        messages, self._channel = load_messages("controller"), channel
        call = functools.partial(_call, channel, token)
        method = functools.partial(call, "Controller")
        self.StopTraining = method("StopTraining", messages, CALL_SECONDS)
        self.ResumeTraining = method("ResumeTraining", messages, CALL_SECONDS)
        self.GetBlockStatus = method("GetBlockStatus", messages, CALL_SECONDS)
        self.SaveCheckpoint = method("SaveCheckpoint", messages, SAVE_SECONDS)
        self.GetTrainingStatus = method("GetTrainingStatus", messages, CALL_SECONDS)

    @classmethod
    def of_model_dir(cls, model_dir: str) -> "Self":
        """Return the calls to the controller of the run in a model directory.

        Raises:
            NotFoundError: No controller has written an address there.
        """
        files = read_files(model_dir)
        return cls(open_channel(files), files.token)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _call(
    channel: Any, token: str, service: str, name: str, messages: Any, seconds: float
) -> Callable[..., Any]:
    """Return a method of a service as a function."""
    request_type = getattr(messages, f"{name}Request")
    method = channel.unary_unary(
        f"/{service}/{name}",
        request_serializer=request_type.SerializeToString,
        response_deserializer=getattr(messages, f"{name}Response").FromString,
    )
    metadata = ((TOKEN_KEY, f"{TOKEN_PREFIX}{token}"),) if token else ()

    def call(request: Any = None, timeout: float = seconds, **options: Any) -> Any:
        message = request_type() if request is None else request
        given = tuple(options.pop("metadata", None) or ())
        return method(message, timeout=timeout, metadata=(*metadata, *given), **options)

    return call


class ControllerClient:
    """Controls the run of a model directory; errors are those of this package. Thread-safe.

    The address is read anew when the controller has moved.

    Args:
        model_dir: Folder of the run.
        timeout_seconds: Deadline of a call, saves apart.

    Raises:
        NotFoundError: No controller has written an address there.
    """

    def __init__(self, model_dir: str, *, timeout_seconds: float = CALL_SECONDS) -> None:
        self._grpc, self._model_dir = load_grpc(), model_dir
        self._timeout_seconds = timeout_seconds
        self._open()

    def _open(self) -> None:
        messages = load_messages("operation")
        self._files = read_files(self._model_dir)
        self._channel = open_channel(self._files)
        self._controller = ControllerStub(self._channel, self._files.token)
        service = "monolith.control.Operation"
        self._operation = {
            name: _call(
                self._channel, self._files.token, service, name, messages, self._timeout_seconds
            )
            for name in ("Status", "Save", "Rows")
        }
        self._messages = messages

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def stop(self) -> None:
        """See `Controlled`."""
        self._ask(lambda: self._controller.StopTraining(timeout=self._timeout_seconds))

    def resume(self) -> None:
        """See `Controlled`."""
        self._ask(lambda: self._controller.ResumeTraining(timeout=self._timeout_seconds))

    def block_status(self) -> BlockStatus:
        """See `Controlled`."""
        answer = self._ask(lambda: self._controller.GetBlockStatus(timeout=self._timeout_seconds))
        return BlockStatus(list(answer.blocked_indices), list(answer.unblocked_indices))

    def global_step(self) -> int:
        """See `Controlled`."""
        call = self._controller.GetTrainingStatus
        return int(self._ask(lambda: call(timeout=self._timeout_seconds)).global_step)

    def save(self, timeout_seconds: float = SAVE_SECONDS) -> SavedCheckpoint:
        """See `Controlled`."""
        answer = self._ask(lambda: self._operation["Save"](timeout=timeout_seconds))
        return SavedCheckpoint(answer.path, answer.step)

    def status(self) -> RunStatus:
        """See `Operated`."""
        answer = self._ask(lambda: self._operation["Status"]())
        workers = [
            WorkerStatus(
                worker.index,
                WorkerState[self._messages.Worker.State.Name(worker.state)],
                worker.step,
                worker.samples_per_second,
                worker.heard_seconds,
            )
            for worker in answer.workers
        ]
        return RunStatus(
            answer.step,
            answer.is_stopped,
            workers,
            answer.checkpoint,
            answer.samples,
            answer.lost_pushes,
            answer.task,
        )

    def rows(self, key: int, table: str = "") -> list[RowValues]:
        """See `Operated`."""
        request = self._messages.RowsRequest(key=key % (1 << 64), table=table)
        answer = self._ask(lambda: self._operation["Rows"](request))
        return [
            RowValues(
                row.table, row.time, {column.name: list(column.values) for column in row.columns}
            )
            for row in answer.rows
        ]

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Return the answer of a call; once more if the controller has moved meanwhile."""
        try:
            return call()
        except self._grpc.RpcError as error:
            codes = self._grpc.StatusCode
            may_have_moved = error.code() in (codes.UNAVAILABLE, codes.UNAUTHENTICATED)
            if not may_have_moved or read_files(self._model_dir) == self._files:
                raise self._error_of(error) from error
        self.close()
        self._open()
        try:
            return call()
        except self._grpc.RpcError as error:
            raise self._error_of(error) from error

    def _error_of(self, error: Any) -> OpError:
        codes, text = self._grpc.StatusCode, error.details() or str(error.code())
        address, folder = self._files.address, self._model_dir
        if error.code() is codes.UNAVAILABLE and not text.startswith("["):
            return UnavailableError(
                f"[control] expected the controller of {folder!r} at {address}, got no answer "
                f"({text}); the run was killed, or is about to start again: its address stays in "
                "the folder until then"
            )
        if error.code() is codes.UNAUTHENTICATED:
            return FailedPreconditionError(
                f"[control] expected the token of the run at {address}, got another or none "
                f"({folder!r}); the folder is that of another run, or was copied"
            )
        if error.code() is codes.DEADLINE_EXCEEDED and not text.startswith("["):
            return DeadlineExceededError(
                f"[control] expected an answer of the controller at {address} in time, got none "
                f"({text}); what was asked may still be done: look at the status"
            )
        kinds = {
            codes.ALREADY_EXISTS: BarrierAlreadyPlacedError,
            codes.DEADLINE_EXCEEDED: DeadlineExceededError,
            codes.NOT_FOUND: NotFoundError,
            codes.FAILED_PRECONDITION: FailedPreconditionError,
            codes.INVALID_ARGUMENT: InvalidArgumentError,
            codes.UNAVAILABLE: UnavailableError,
            codes.ABORTED: AbortedError,
        }
        return kinds.get(error.code(), OpError)(text)
