"""The exception tree.

    MonolithError
    └── OpError                      also RuntimeError
        ├── AbortedError
        ├── CancelledError
        ├── DataLossError
        ├── DeadlineExceededError
        │   └── QueueFullError
        ├── FailedPreconditionError
        ├── InvalidArgumentError     also ValueError
        ├── NonFiniteLossError
        ├── NotFoundError            also FileNotFoundError
        ├── OutOfRangeError
        │   └── EndOfQueueError      also CancelledError
        └── UnavailableError
Errors of a caller raise `ValueError` or `TypeError`; failures of RPC stay `grpc.RpcError`.
Mistakes of a caller raise `ValueError` or `TypeError`; failures of RPC stay `grpc.RpcError`.
"""

__all__ = [
    "AbortedError",
    "CancelledError",
    "DataLossError",
    "DeadlineExceededError",
    "EndOfQueueError",
    "FailedPreconditionError",
    "InvalidArgumentError",
    "MonolithError",
    "NonFiniteLossError",
    "NotFoundError",
    "OpError",
    "OutOfRangeError",
    "QueueFullError",
    "UnavailableError",
]


class MonolithError(Exception):
    """Base of every exception class that this package defines."""


class OpError(MonolithError, RuntimeError):
    """An operation on a table, queue, checkpoint or cluster failed while running."""


class AbortedError(OpError):
    """The operation was aborted, typically because of a conflict or a restarted peer."""


class CancelledError(OpError):
    """The operation was cancelled by its caller or by a closing queue."""


class DataLossError(OpError):
    """Stored data is truncated, corrupt or lost and cannot be recovered here."""


class DeadlineExceededError(OpError):
    """The time limit passed before the operation completed."""


class FailedPreconditionError(OpError):
    """The system is not in the state that the operation needs, for example not initialised."""


class InvalidArgumentError(OpError, ValueError):
    """An argument can never be valid, whatever the state of the system."""


class NonFiniteLossError(OpError):
    """The loss of a batch is NaN or infinite; the batch changed no parameter.

    Attributes:
        step: number of the failed step, counted from 0.
        batch: samples of the failed step, a `monolith.data.Batch`.
        path: path of the file with the samples, if one was written.
    """

    step: int | None = None
    batch: object = None
    path: str | None = None


class NotFoundError(OpError, FileNotFoundError):
    """A file, a checkpoint or a named resource does not exist."""


class OutOfRangeError(OpError):
    """The input ended: the normal end of a training run."""


class EndOfQueueError(OutOfRangeError, CancelledError):
    """A queue is closed and empty: the end of an input."""


class QueueFullError(DeadlineExceededError):
    """A queue had no room before the time limit passed; the item was not added."""


class UnavailableError(OpError):
    """A peer cannot be reached at the moment; another attempt may succeed."""
