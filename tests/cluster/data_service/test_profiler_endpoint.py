"""Traces that other processes ask for."""

import json
import subprocess
import sys
import threading

import pytest
import torch

from monolith.cluster.data_service.profiler_endpoint import (
    ProfilerEndpoint,
    TraceOptions,
    profiler_trace,
    request_traces,
)
from monolith.cluster.discovery.mlp_env import MLPEnv
from monolith.errors import InvalidArgumentError, UnavailableError
from tests.forker import limited

pytest.importorskip("zmq")

SHORT = TraceOptions(delay_ms=0, duration_ms=300)


def names_of(path):
    """Names of what happened in a trace."""
    with open(path) as file:
        return {event.get("name") for event in json.load(file)["traceEvents"]}


@pytest.mark.dist
@pytest.mark.slow
def test_a_process_writes_a_trace_of_its_work(tmp_path):
    program = (
        "import time, torch\n"
        "from monolith.cluster.data_service.profiler_endpoint import ProfilerEndpoint\n"
        "with ProfilerEndpoint() as endpoint:\n"
        "    print(endpoint.address, flush=True)\n"
        "    while True: torch.ones(64, 64) @ torch.ones(64, 64), time.sleep(0.001)\n"
    )
    with (
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env={
                "PATH": "",
                "PYTHONPATH": ":".join(sys.path),
                "TENSORBOARD_LOG_PATH": str(tmp_path),
            },
        ) as process,
        limited(process.kill, 120),
    ):
        address = process.stdout.readline().strip()
        paths = request_traces([address], SHORT)
        process.kill()
    assert list(paths) == [address]
    assert "aten::mm" in names_of(paths[address])
    assert [str(path) for path in tmp_path.iterdir()] == list(paths.values())


def test_levels_choose_what_a_trace_has(tmp_path):
    with ProfilerEndpoint(directory=str(tmp_path)) as endpoint:
        options = TraceOptions(0, 50, python_tracer_level=1)
        assert request_traces([endpoint.address], options)
        if not torch.cuda.is_available():
            with pytest.raises(UnavailableError, match="levels that record nothing"):
                request_traces([endpoint.address], TraceOptions(0, 50, host_tracer_level=0))
        with pytest.raises(UnavailableError, match="expected duration_ms as an int in"):
            request_traces([endpoint.address], TraceOptions(0, 0))


def test_a_process_writes_one_trace_at_a_time(tmp_path):
    with ProfilerEndpoint(directory=str(tmp_path)) as endpoint:
        began = threading.Event()
        first = threading.Thread(
            target=lambda: (began.set(), request_traces([endpoint.address], TraceOptions(0, 1500)))
        )
        first.start()
        began.wait(10)
        while not endpoint._host._is_profiling.locked():
            threading.Event().wait(0.01)
        with pytest.raises(UnavailableError, match="expected a process that writes no trace"):
            request_traces([endpoint.address], SHORT)
        first.join()
        assert request_traces([endpoint.address], SHORT)


def test_a_profiler_of_the_process_itself_is_not_disturbed(tmp_path):
    with (
        ProfilerEndpoint(directory=str(tmp_path)) as endpoint,
        torch.profiler.profile(),
        pytest.raises(UnavailableError, match="expected a process that writes no trace"),
    ):
        request_traces([endpoint.address], SHORT)


def test_a_profiler_needs_a_folder_of_this_machine(monkeypatch):
    monkeypatch.delenv("TENSORBOARD_LOG_PATH", raising=False)
    for folder in (None, "memory://traces"):
        with pytest.raises(InvalidArgumentError, match="set TENSORBOARD_LOG_PATH"):
            ProfilerEndpoint(directory=folder)


def test_a_profiler_that_others_reach_needs_keys(tmp_path):
    with pytest.raises(InvalidArgumentError, match="expected keys for an address"):
        ProfilerEndpoint("0.0.0.0:0", str(tmp_path))


def test_processes_of_a_role_are_asked(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TENSORBOARD_LOG_PATH", str(tmp_path))
    monkeypatch.setenv("YARN_INET_ADDR", "127.0.0.1")
    env = MLPEnv({"MLP_DSWORKER_NUM": "2", "MLP_DSWORKER_0_PRIMARY_HOST": "127.0.0.1"})
    env.start_profiler(0)
    env.start_profiler(0)  # there is one already
    port = int(env._profiler.address.rpartition(":")[2])
    paths = profiler_trace("dsworker", delay_ms=0, duration_ms=50, port=port, env=env)
    assert list(paths) == [f"127.0.0.1:{port}"]  # the other one has no host
    env.stop_profiler()
    env.stop_profiler()
    with pytest.raises(UnavailableError, match="expected a trace of some process, got none"):
        profiler_trace("dsworker", 1, port=port, env=env)


def test_ranks_of_one_machine_have_ports_of_their_own():
    rank = {"MLP_ROLE": "worker", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    env = MLPEnv(
        {**rank, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "MLP_WORKER_0_PRIMARY_HOST": "10.0.0.1"}
    )
    assert env.profiler_addr() == "10.0.0.1:6669"
    assert env.profiler_addr("worker", 1) == "10.0.0.1:6667"
