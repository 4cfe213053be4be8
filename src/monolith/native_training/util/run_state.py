"""Give what a run shares with other processes of its job: flags and texts, and its servers."""

from monolith.cluster.job.shared_state import LocalSharedState, SharedState
from monolith.cluster.servers import Servers
from monolith.errors import FailedPreconditionError
from monolith.train.driver import Run, current_run

_SHARED_STATE = "shared_state"
_SERVERS = "servers"


def share(run: Run, shared: SharedState) -> None:
    """Set the flags and texts that a run shares with other processes of its job."""
    run.metadata[_SHARED_STATE] = shared


def shared_state_of(run: Run | None = None) -> SharedState:
    """Return the flags and texts of a run; those of this process alone if none were set.

    Args:
        run: The run; None takes the current run, and outside of all runs makes a new state.
    """
    run = current_run() if run is None else run
    if run is None:
        return LocalSharedState()
    shared: SharedState = run.metadata.setdefault(_SHARED_STATE, LocalSharedState())
    return shared


def use_servers(run: Run, servers: Servers | None) -> None:
    """Set the servers on which a run trains; None for a run without servers."""
    run.metadata[_SERVERS] = servers


def servers_of_run() -> Servers:
    """Return the servers on which the current run trains.

    Raises:
        FailedPreconditionError: The current run trains without servers, or there is no run.
    """
    run = current_run()
    servers = None if run is None else run.metadata.get(_SERVERS)
    if not isinstance(servers, Servers):
        raise FailedPreconditionError(
            "[servers_of_run] expected a run on servers, got one without; train with num_ps >= 1"
        )
    return servers
