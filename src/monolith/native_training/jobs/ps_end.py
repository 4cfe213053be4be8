"""End the servers of a job."""

import logging

from monolith.errors import OpError
from monolith.native_training.jobs.started_servers import StartedServers

_log = logging.getLogger(__name__)


def shutdown_ps(servers: StartedServers) -> None:
    """Let all servers that were started for a job end, also those without a place in the job.

    A server that does not answer is named in the log.

    Args:
        servers: Servers of the job.
    """
    for number in servers.registered():
        try:
            with servers.one(number) as server:
                server.end(servers.config.num_workers)
        except OpError as error:
            _log.warning("server %d was not ended: %s", number, error)
