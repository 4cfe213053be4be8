from monolith.cluster.discovery import HostServiceDiscovery
from monolith.cluster.zmq.server_process import ServerOptions, ServerProcess
from monolith.native_training.jobs import started_servers
from monolith.native_training.jobs.ps_end import shutdown_ps
from monolith.native_training.jobs.started_servers import StartedServers
from monolith.native_training.jobs.training_config import DistributedCpuTrainingConfig


def test_servers_with_and_without_a_place_end_and_one_that_is_gone_is_named(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(started_servers, "_ONE_SECONDS", 0.5)
    config = DistributedCpuTrainingConfig(num_ps=1, num_extra_ps=2, model_dir=str(tmp_path))
    discovery = HostServiceDiscovery(tmp_path / "discovery")
    servers = StartedServers(config, discovery)
    processes = [ServerProcess(ServerOptions(index, 3)) for index in (0, 2)]
    for process, index in zip(processes, (0, 2), strict=True):
        discovery.register("ps", index, process.loop.address)
    discovery.register("ps", 1, "127.0.0.1:9")
    servers.settle(servers.addresses([2]))
    assert servers.places() == [2]
    shutdown_ps(servers)
    for process in processes:
        process.run(0.01)  # returns
        process.close()
    assert "server 1 was not ended" in caplog.text
