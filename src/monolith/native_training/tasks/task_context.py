"""Say which process of a job runs: `NativeTaskContext`."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple


class NativeTaskContext(NamedTuple):
    """A process among those of its job.

    Attributes:
        num_ps: parameter servers of the job.
        ps_index: which of them this is; 0 in a worker.
        num_workers: workers of the job.
        worker_index: which of them this is; 0 in a parameter server.
        model_name: of the job.
        sync_backend: of parameters that are sent to serving.
        server_type: "ps" or "worker".
    """

    num_ps: int = 0
    ps_index: int = 0
    num_workers: int = 1
    worker_index: int = 0
    model_name: str = ""
    sync_backend: Any = None
    server_type: str = ""


_CURRENT: ContextVar[NativeTaskContext] = ContextVar("monolith_task_context")


@contextmanager
def with_ctx(ctx: NativeTaskContext) -> Iterator[None]:
    """Make this what `get` gives, until the block ends; other threads do not see it.

    Example:
        >>> with with_ctx(NativeTaskContext(num_workers=4, worker_index=3)):
        ...     get().worker_index
        3
    """
    token = _CURRENT.set(ctx)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def get() -> NativeTaskContext:
    """The current one; outside of all blocks, that of a job of one worker."""
    return _CURRENT.get(NativeTaskContext())
