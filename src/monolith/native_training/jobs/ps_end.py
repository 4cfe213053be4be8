"""End the servers of a job: the chief asks, and each server goes when it is asked."""

import logging

from monolith.cluster.job.shared_state import SharedState
from monolith.native_training.saver.tide import TimeSource
from monolith.util.waiting import check_timeout

_log = logging.getLogger(__name__)

_ASKED, _LEFT = "ps_asked_to_end", "ps_left"
_POLL_SECONDS = 1.0
_LEAVE_SECONDS = 10.0
_SYSTEM_TIME = TimeSource()


def shutdown_ps(shared: SharedState, num_ps: int) -> None:
    """Ask all servers of a job to end.

    Args:
        shared: Flags of the job.
        num_ps: Number of servers.
    """
    for index in range(num_ps):
        shared.set_flag(_ASKED, num_ps, index, True)


def join_ps(
    shared: SharedState,
    num_ps: int,
    index: int,
    *,
    leave_seconds: float = _LEAVE_SECONDS,
    source: TimeSource = _SYSTEM_TIME,
) -> None:
    """Return when a server is asked to end; server 0, which has the flags, after the others.

    A server has no limit on its life, so this wait has none.

    Args:
        shared: Flags of the job.
        num_ps: Number of servers.
        index: Number of this server.
        leave_seconds: Limit on the wait of server 0 for the others.
        source: The time.

    Raises:
        ValueError: The limit is negative or not a number.
    """
    check_timeout("[join_ps]", leave_seconds)
    while not shared.flags(_ASKED, num_ps)[index]:
        source.sleep(_POLL_SECONDS)
    shared.set_flag(_LEFT, num_ps, index, True)
    if index:
        return
    end = source.monotonic() + leave_seconds
    while not all(shared.flags(_LEFT, num_ps)):
        if source.monotonic() >= end:
            left = [i for i, has_left in enumerate(shared.flags(_LEFT, num_ps)) if not has_left]
            _log.warning("servers %s have not left within %g s", left, leave_seconds)
            return
        source.sleep(_POLL_SECONDS)
