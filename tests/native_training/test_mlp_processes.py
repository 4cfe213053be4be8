"""A job of the MLP launch environment: dispatcher, data workers, server and worker."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forker import limited

pytest.importorskip("zmq")
pytestmark = pytest.mark.dist

ROOT = Path(__file__).parents[2]
ROLES = (("dispatcher", 0), ("dsworker", 0), ("dsworker", 1), ("ps", 0), ("worker", 0))


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def variables(ports, ssh_port):
    """The variables that all processes have."""
    variables = {"YARN_INET_ADDR": "127.0.0.1", "MLP_SSH_PORT": str(ssh_port)}
    for (role, index), port in zip(ROLES, ports, strict=True):
        name = f"MLP_{role.upper()}"
        variables[f"{name}_{index}_PRIMARY_HOST"] = "127.0.0.1"
        variables[f"{name}_{index}_PORT"] = str(port)
        variables[f"{name}_NUM"] = str(sum(each == role for each, _ in ROLES))
    return variables


@pytest.mark.slow
@pytest.mark.req("NT-MLP-T7")
def test_a_worker_trains_what_data_workers_read(tmp_path):
    ssh = socket.create_server(("127.0.0.1", 0))
    ports = free_ports(len(ROLES))
    common = variables(ports, ssh.getsockname()[1])
    outputs = {}
    with (
        subprocess.Popen(
            [sys.executable, "-m", "tests.native_training.mlp_program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
            start_new_session=True,  # a group with its children
        ) as process,
        limited(lambda: os.killpg(process.pid, signal.SIGKILL), 90),
        ssh,
    ):
        for (role, index), port in zip(ROLES, ports, strict=True):
            output = outputs[role, index] = tmp_path / f"{role}-{index}.log"
            own = {"MLP_ROLE": role, "MLP_ROLE_INDEX": str(index), "MLP_PORT": str(port)}
            line = [str(output), {**common, **own}, str(tmp_path / "model")]
            process.stdin.write(json.dumps(line) + "\n")
            assert process.stdout.readline().strip().isdecimal()
        for number in range(len(ROLES)):  # the worker first, then the server
            process.stdin.write("wait\n")
            assert process.stdout.readline() == "ended\n"
            if number == 1:
                ssh.close()  # the machine of the worker is gone: the data service ends
    said = {place: output.read_text() for place, output in outputs.items()}
    statuses = {place: Path(f"{o}.status").read_text() for place, o in outputs.items()}
    assert set(statuses.values()) == {"0"}, said
    trained = [int(n) for n in re.findall(r"^trains (\d+)$", said["worker", 0], re.MULTILINE)]
    read = {place: re.findall(r"^reads (\d+)$", text, re.MULTILINE) for place, text in said.items()}
    # Each process calls the model function once with its first batch, to see the slots.
    assert sorted(trained) == [0, *range(12)]
    assert read["worker", 0] == ["0"]
    by_service = {*read["dsworker", 0], *read["dsworker", 1]}
    assert by_service == set(map(str, range(12)))
    assert min(len(read["dsworker", index]) for index in range(2)) > 1
