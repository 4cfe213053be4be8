"""`ControllerServer`: the gRPC server by which other processes control a run."""

import hmac
import ipaddress
import logging
import math
import re
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monolith.control.controlled import (
    CALL_SECONDS,
    BarrierAlreadyPlacedError,
    Controlled,
    Operated,
)
from monolith.control.grpc_extra import load_grpc, load_messages
from monolith.control.run_files import ControllerFiles, remove_files, write_files
from monolith.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    MonolithError,
    NotFoundError,
    UnavailableError,
)

if TYPE_CHECKING:
    from typing_extensions import Self

TOKEN_KEY = "authorization"
TOKEN_PREFIX = "Bearer "

_NUM_THREADS = 16
_NUM_SAVES = 4  # that wait at once, so that other calls have threads
_NUM_ASKS = 10  # other calls at once, so that threads are left to refuse more
_MAX_CALLS = 64
_MAX_REQUEST_BYTES = 1 << 16
_SAVE_SECONDS = 3600.0  # for a caller without a deadline
_MAX_CALL_SECONDS = 60.0
_MAX_ANSWER_SECONDS = 0.5  # of a call's time that are left for its answer
_TOKEN_BYTES = 32

_CERTIFICATE = re.compile(
    rb"^-----BEGIN CERTIFICATE-----\s[^-]+^-----END CERTIFICATE-----", re.MULTILINE
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControlOptions:
    """Where a controller listens.

    Args:
        bind: Address as `host:port`; port 0 takes a free one. Clients use the same host.
        cert: File with a certificate in PEM, for TLS.
        key: File with the secret key of the certificate.
        insecure: Whether an address of another than this machine is allowed without TLS.
        grace_seconds: Seconds that calls may take after the end of the run.

    Raises:
        ValueError: The address is none, others could reach it without TLS, or one of `cert` and
            `key` is missing.
    """

    bind: str = "127.0.0.1:0"
    cert: str | None = None
    key: str | None = None
    insecure: bool = False
    grace_seconds: float = 20.0

    def __post_init__(self) -> None:
        host, _, port = self.bind.rpartition(":")
        if not host.strip("[]") or not port.isdecimal() or int(port) > 65535:
            raise ValueError(
                f"[ControlOptions] expected bind as host:port, got {self.bind!r}; for example "
                "127.0.0.1:0"
            )
        if (self.cert is None) != (self.key is None):
            raise ValueError(
                f"[ControlOptions] expected cert and key, or none, got cert {self.cert!r} and key "
                f"{self.key!r}"
            )
        if _is_any(self.host):
            raise ValueError(
                f"[ControlOptions] expected a host that clients reach, got {self.bind!r}; give the "
                "address of this machine"
            )
        if not (_is_loopback(self.host) or self.cert or self.insecure):
            raise ValueError(
                f"[ControlOptions] expected a loopback address or TLS, got {self.bind!r} without "
                "cert and key; give them, or set insecure: then the token can be read on the way"
            )

    @property
    def host(self) -> str:
        """Host of the address, without brackets."""
        return self.bind.rpartition(":")[0].strip("[]")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


class ControllerServer:
    """Serves `Controller`, and `Operation` where the run tells how it goes.

    It listens when the constructor returns, and has written its address and a random token to the
    model directory. A call without the token is refused.

    Args:
        model_dir: Folder of the run.
        controlled: The run.
        options: Where to listen; None takes the defaults.

    Attributes:
        address: Address of the server.

    Raises:
        FailedPreconditionError: grpcio is not installed.
        UnavailableError: The server cannot listen at the address.
        InvalidArgumentError: The file of the certificate has none.
        OpError: The address cannot be written, or a file of TLS cannot be read.
    """

    def __init__(
        self, model_dir: str, controlled: Controlled, options: ControlOptions | None = None
    ) -> None:
        grpc, options = load_grpc(), options or ControlOptions()
        self._model_dir, self._grace_seconds = model_dir, options.grace_seconds
        token, self._is_closed = secrets.token_hex(_TOKEN_BYTES), False
        handlers = _Handlers(grpc, controlled)
        self._server = grpc.server(
            ThreadPoolExecutor(_NUM_THREADS, "control"),
            handlers=handlers.all(),
            interceptors=[_token_check(grpc, token)],
            maximum_concurrent_rpcs=_MAX_CALLS,
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
                ("grpc.max_metadata_size", _MAX_REQUEST_BYTES),
            ],
        )
        certificates, credentials = b"", None
        if options.cert is not None and options.key is not None:
            certificates, key = _read_certificates(options.cert), _read(options.key)
            credentials = grpc.ssl_server_credentials([(key, certificates)])
        try:
            if credentials is None:
                port = self._server.add_insecure_port(options.bind)
            else:
                port = self._server.add_secure_port(options.bind, credentials)
        except RuntimeError as error:
            raise UnavailableError(
                f"[ControllerServer] expected to listen at {options.bind}, got {error}; take "
                "another address, or port 0"
            ) from error
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.address = f"{host}:{port}"
        self._server.start()
        try:
            write_files(model_dir, ControllerFiles(self.address, token, certificates.decode()))
        except BaseException:
            self._server.stop(None)
            raise
        _log.info("the controller listens at %s; its address is in %s", self.address, model_dir)

    def close(self) -> None:
        """Refuse calls from now on, and wait for those that are running. Closing twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            remove_files(self._model_dir, self.address)
        except OSError as error:
            _log.warning("the address of the controller stays in %s: %s", self._model_dir, error)
        self._server.stop(self._grace_seconds).wait(self._grace_seconds + 1)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _read_certificates(path: str) -> bytes:
    """Return the certificates of a file in PEM, which may have a secret key, too.

    Raises:
        InvalidArgumentError: There is none.
    """
    blocks: list[bytes] = _CERTIFICATE.findall(_read(path).replace(b"\r\n", b"\n"))
    if not blocks:
        raise InvalidArgumentError(
            f"[ControllerServer] expected a certificate in PEM, got none in {path}; give the file "
            "of the certificate first, and that of its key second"
        )
    return b"".join(block + b"\n" for block in blocks)


def _token_check(grpc: Any, token: str) -> Any:
    """Return an interceptor that refuses calls without the token of the run."""
    expected = f"{TOKEN_PREFIX}{token}".encode()

    def refuse(request: Any, context: Any) -> None:
        context.abort(
            grpc.StatusCode.UNAUTHENTICATED,
            "[ControllerServer] expected the token of this run, got another or none; read it from "
            "the model directory of the run",
        )

    refusal = grpc.unary_unary_rpc_method_handler(refuse)

    class TokenCheck(grpc.ServerInterceptor):  # type: ignore[misc]  # the class is loaded late
        def intercept_service(self, continuation: Any, call: Any) -> Any:
            given = [value for name, value in call.invocation_metadata if name == TOKEN_KEY]
            is_known = len(given) == 1 and hmac.compare_digest(str(given[0]).encode(), expected)
            return continuation(call) if is_known else refusal

    return TokenCheck()


class _Handlers:
    """The methods of both services."""

    def __init__(self, grpc: Any, controlled: Controlled) -> None:
        self._grpc, self._run = grpc, controlled
        self._controller, self._operation = load_messages("controller"), load_messages("operation")
        self._saves = threading.BoundedSemaphore(_NUM_SAVES)
        self._asks = threading.BoundedSemaphore(_NUM_ASKS)

    def all(self) -> list[Any]:
        c, o = self._controller, self._operation
        services: dict[str, dict[str, tuple[Any, Callable[[Any, Any], Any]]]] = {
            "Controller": {
                "StopTraining": (c.StopTrainingRequest, self._stop),
                "ResumeTraining": (c.ResumeTrainingRequest, self._resume),
                "GetBlockStatus": (c.GetBlockStatusRequest, self._block_status),
                "SaveCheckpoint": (c.SaveCheckpointRequest, self._save_checkpoint),
                "GetTrainingStatus": (c.GetTrainingStatusRequest, self._training_status),
            }
        }
        if hasattr(self._run, "rows"):
            services["monolith.control.Operation"] = {
                "Status": (o.StatusRequest, self._status),
                "Save": (o.SaveRequest, self._save),
                "Rows": (o.RowsRequest, self._rows),
            }
        unary = self._grpc.unary_unary_rpc_method_handler
        return [
            self._grpc.method_handlers_generic_handler(
                service,
                {
                    name: unary(
                        self._checked(name, call),
                        request_deserializer=kind.FromString,
                        response_serializer=_serialize,
                    )
                    for name, (kind, call) in methods.items()
                },
            )
            for service, methods in services.items()
        ]

    def _checked(self, name: str, call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Answer errors of a method with their status and text."""

        def answer(request: Any, context: Any) -> Any:
            try:
                self._check_in_time(name, context)
                return call(request, context)
            except Exception as error:
                if not isinstance(error, MonolithError | ValueError):
                    _log.exception("a call of %s failed", name)
                code, text = self._code_of(error), str(error) or type(error).__name__
            return context.abort(code, text)

        return answer

    def _check_in_time(self, name: str, context: Any) -> None:
        """Refuse a call whose caller waits no more: it has been told that the call failed."""
        left = context.time_remaining()
        if not context.is_active() or (left is not None and left <= 0):
            raise DeadlineExceededError(
                f"[ControllerServer] expected to begin {name} before the deadline of the call, got "
                "a thread for it later; nothing is done"
            )

    def _ask(self, call: Callable[..., Any], context: Any, *arguments: Any) -> Any:
        """Call a method of the run with the time that the call has left."""
        if not self._asks.acquire(blocking=False):
            raise UnavailableError(
                f"[ControllerServer] expected at most {_NUM_ASKS} calls at once, got one more: "
                "those before it wait for a server that does not answer; try again later"
            )
        try:
            left = context.time_remaining()
            left = CALL_SECONDS if left is None or not math.isfinite(left) else left
            left = min(left, _MAX_CALL_SECONDS)
            return call(*arguments, left - min(_MAX_ANSWER_SECONDS, left / 4))
        finally:
            self._asks.release()

    def _code_of(self, error: Exception) -> Any:
        codes = self._grpc.StatusCode
        of_classes = (
            (BarrierAlreadyPlacedError, codes.ALREADY_EXISTS),
            (DeadlineExceededError, codes.DEADLINE_EXCEEDED),
            (NotFoundError, codes.NOT_FOUND),
            (FailedPreconditionError, codes.FAILED_PRECONDITION),
            (InvalidArgumentError, codes.INVALID_ARGUMENT),
            (UnavailableError, codes.UNAVAILABLE),
            (AbortedError, codes.ABORTED),
        )
        return next((code for kind, code in of_classes if isinstance(error, kind)), codes.INTERNAL)

    # Controller

    def _stop(self, request: Any, context: Any) -> Any:
        self._ask(self._run.stop, context)
        return self._controller.StopTrainingResponse()

    def _resume(self, request: Any, context: Any) -> Any:
        self._ask(self._run.resume, context)
        return self._controller.ResumeTrainingResponse()

    def _block_status(self, request: Any, context: Any) -> Any:
        status = self._ask(self._run.block_status, context)
        return self._controller.GetBlockStatusResponse(
            blocked_indices=status.blocked, unblocked_indices=status.unblocked
        )

    def _save_checkpoint(self, request: Any, context: Any) -> Any:
        self._save_within(context)
        return self._controller.SaveCheckpointResponse()

    def _training_status(self, request: Any, context: Any) -> Any:
        step = self._ask(self._run.global_step, context)
        return self._controller.GetTrainingStatusResponse(global_step=step)

    def _save_within(self, context: Any) -> Any:
        """Save within the deadline of the call."""
        if not self._saves.acquire(blocking=False):
            raise UnavailableError(
                f"[ControllerServer] expected at most {_NUM_SAVES} saves at once, got one more; "
                "try again when they have ended"
            )
        try:
            left = context.time_remaining()
            is_limited = left is not None and math.isfinite(left) and left < _SAVE_SECONDS
            return self._run.save(left if is_limited else _SAVE_SECONDS)
        finally:
            self._saves.release()

    # Operation

    @property
    def _operated(self) -> Operated:
        run: Any = self._run
        return run  # type: ignore[no-any-return]

    def _status(self, request: Any, context: Any) -> Any:
        status, messages = self._ask(self._operated.status, context), self._operation
        workers = [
            messages.Worker(
                index=worker.index,
                state=messages.Worker.State.Value(worker.state.name),
                step=worker.step,
                samples_per_second=worker.samples_per_second,
                heard_seconds=worker.heard_seconds,
            )
            for worker in status.workers
        ]
        fields = {
            name: getattr(status, name)
            for name in ("step", "is_stopped", "checkpoint", "samples", "lost_pushes", "task")
        }
        return messages.StatusResponse(workers=workers, **fields)

    def _save(self, request: Any, context: Any) -> Any:
        path, step = self._save_within(context)
        return self._operation.SaveResponse(path=path, step=step)

    def _rows(self, request: Any, context: Any) -> Any:
        messages, key = self._operation, request.key
        key = key - (1 << 64) if key >= 1 << 63 else key
        rows = self._ask(self._operated.rows, context, key, request.table)
        return messages.RowsResponse(
            step=self._ask(self._run.global_step, context),
            rows=[
                messages.Row(
                    table=row.table,
                    time=row.time,
                    columns=[
                        messages.Column(name=name, values=values)
                        for name, values in row.columns.items()
                    ],
                )
                for row in rows
            ],
        )


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
