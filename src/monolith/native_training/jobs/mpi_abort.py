"""End all processes of an MPI job when one of them fails."""

import os
import sys
from collections.abc import Callable
from types import TracebackType

from monolith.environment import mpi_rank


def add_mpi_exception_hook(abort: Callable[[int], object] | None = None) -> None:
    """Let an uncaught error end all processes of the MPI job with status 1.

    Nothing is changed in a process without a rank of MPI.

    Args:
        abort: Ends all processes with a status; None uses `mpi4py`, and without it ends this
            process, after which the launcher ends the others.
    """
    rank = mpi_rank()
    if rank is None:
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        try:
            sys.__excepthook__(kind, error, traceback)
            print(f"rank {rank} failed by {kind.__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            (abort or _abort)(1)

    sys.excepthook = hook


def _abort(status: int) -> None:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # without mpi4py, or without a library of MPI
        sys.stdout.flush()
        os._exit(status)
    MPI.COMM_WORLD.Abort(status)
