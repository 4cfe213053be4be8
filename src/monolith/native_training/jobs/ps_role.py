"""A server of a job, from its start to the end of the job."""

import logging
from typing import Any

from monolith.cluster.discovery import ServiceDiscovery
from monolith.cluster.job.dense_shard import DenseShard
from monolith.cluster.servers import PS_JOB_NAME
from monolith.cluster.zmq.server_process import ServerOptions, ServerProcess
from monolith.native_training.jobs.started_servers import StartedServers
from monolith.native_training.tasks import task_context
from monolith.native_training.tasks.task_context import NativeTaskContext
from monolith.train.roles.server import dense_shard
from monolith.train.settings import TrainSettings

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_DRAIN_SECONDS = 30.0


def run_server(
    servers: StartedServers, discovery: ServiceDiscovery, params: Any, options: ServerOptions
) -> None:
    """Serve until the job has ended.

    Args:
        servers: Servers of the job; the config says which of them this is.
        discovery: Gets the address of the server.
        params: Parameters of the task, whose dense parameters live on the servers.
        options: How to run, with the number of the server among those that were started.
    """
    index = options.index
    discovery.hold(PS_JOB_NAME, index)
    with ServerProcess(options, _dense_of(servers, params)) as process:
        places = servers.places()
        if places is not None and index in places:  # it starts again
            process.host.renumber(places.index(index), len(places))
        address = process.loop.address.removeprefix("tcp://")
        discovery.register(PS_JOB_NAME, index, address)
        _log.info("Started ps %d at %s.", index, address)
        try:
            process.run(_POLL_SECONDS)
            process.drain(_DRAIN_SECONDS)
        finally:
            discovery.deregister(PS_JOB_NAME, index, address)
    _log.info("Finished ps %d.", index)


def _dense_of(servers: StartedServers, params: Any) -> DenseShard:
    config = servers.config
    context = NativeTaskContext(
        num_ps=config.num_ps,
        ps_index=config.index,
        num_workers=config.num_workers,
        model_name=config.model_name,
        server_type=config.server_type,
    )
    with task_context.with_ctx(context):
        settings = TrainSettings(checkpoint_dir=config.model_dir)
        return dense_shard(params.instantiate(), settings, config.index, servers.num_started)
