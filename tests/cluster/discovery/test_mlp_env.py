import contextlib
import socket
import subprocess
import sys
import time

import pytest

from monolith.cluster.discovery.mlp_env import MLPEnv, check_port
from tests.cluster.discovery.mlp_variables import MPI, PLAIN


@contextlib.contextmanager
def listening(host="127.0.0.1", backlog=8):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as server:
        server.bind((host, 0))
        server.listen(backlog)
        yield server.getsockname()[1]


def closed_port(host="127.0.0.1"):
    with listening(host) as port:
        return port


@pytest.mark.req("NT-MLP-T1")
def test_the_environment_tells_roles_and_numbers():
    env = MLPEnv(PLAIN)
    assert (env.role, env.index, env.port, env.ssh_port) == ("WORKER", 1, 7101, 9022)
    assert (env.framework, env.cpu, env.gpu, env.gpu_type) == ("TensorFlow", 8, 0, "A100")
    assert env.all_roles == {"PS": 2, "WORKER": 2, "DISPATCHER": 1, "DSWORKER": 1}
    assert (env.num_replicas(), env.num_replicas("ps"), env.num_replicas("chief")) == (2, 2, 0)
    assert env.avaiable
    assert env.available
    assert not env.enable_mpi


@pytest.mark.req("NT-MLP-T1")
def test_the_environment_tells_addresses():
    env = MLPEnv(PLAIN)
    assert (env.get_host(), env.get_host("ps"), env.get_host("ps", 1)) == (
        "2001:db8::7",
        "10.0.0.1",
        "10.0.0.2",
    )
    assert (env.get_host("ps", is_primary=False), env.get_host("chief")) == ("192.168.0.1", None)
    assert (env.get_addr(), env.get_addr("PS", 1), env.get_addr("dsworker")) == (
        "[2001:db8::7]:7101",
        "10.0.0.2:7001",
        None,
    )
    assert (env.get_port(), env.get_port("ps", 1), env.get_port("dsworker")) == (7101, 7001, 2222)
    assert env.get_all_host("ps") == "10.0.0.1,10.0.0.2"
    assert env.get_all_addrs("ps") == ["10.0.0.1:7000", "10.0.0.2:7001"]
    assert env.get_all_addrs("ps", is_primary=False) == []
    assert env.dispatcher_target() == "grpc://10.0.0.5:5000"


@pytest.mark.req("NT-MLP-T1")
def test_ranks_number_the_workers_of_an_mpi_job():
    env = MLPEnv(MPI)
    assert (env.enable_mpi, env.index, env.port) == (True, 3, 2225)
    assert (env.all_roles, env.num_replicas()) == ({"WORKER": 4}, 4)
    assert (env.get_host(), env.get_host(index=0)) == ("10.0.0.2", "10.0.0.1")
    assert env.get_addr() is None  # no variable has a port
    with_port = MLPEnv({**MPI, "MLP_WORKER_0_PORT": "3000"})
    assert (with_port.get_addr(), with_port.get_port(index=1)) == ("10.0.0.2:3003", 3001)
    assert env.dispatcher_target() == "grpc://localhost:5050"


@pytest.mark.req("NT-MLP-T1")
@pytest.mark.parametrize(("index", "address"), [(0, "10.0.0.8:7000"), (1, "10.0.0.9:7001")])
def test_servers_of_an_mpi_job_have_machines_of_their_own(index, address):
    servers = {name: PLAIN[name] for name in ("MLP_PS_NUM", "MLP_PS_0_PORT", "MLP_PS_1_PORT")}
    hosts = {"MLP_PS_0_PRIMARY_HOST": "10.0.0.8", "MLP_PS_1_PRIMARY_HOST": "10.0.0.9"}
    assert MLPEnv({**MPI, **servers, **hosts}).get_addr("ps", index) == address


@pytest.mark.req("NT-MLP-T1")
@pytest.mark.parametrize(
    ("roles", "device"),
    [
        (("PS", "WORKER"), "/job:ps/task:0/device:CPU:0"),
        (("WORKER",), "/job:worker/task:0/device:CPU:0"),
        ((), "/device:CPU:0"),
    ],
)
def test_queues_are_on_the_first_server_or_worker(roles, device):
    assert MLPEnv({f"MLP_{role}_NUM": "1" for role in roles}).queue_device == device


@pytest.mark.req("NT-MLP-T2")
def test_quotes_are_stripped_and_ports_are_numbers():
    assert MLPEnv({"MLP_PS_0_HOST": "\"'10.0.0.1'\""}).get_host("ps", 0, False) == "10.0.0.1"
    assert MLPEnv(MPI).get_port() == 2225


def test_without_variables_there_is_no_environment():
    env = MLPEnv({"PATH": "/bin"})
    assert (env.avaiable, env.role, env.all_roles) == (False, "", {})


def test_variables_of_the_process_are_taken_once(monkeypatch):
    monkeypatch.setenv("MLP_ROLE", "ps")
    env = MLPEnv()
    monkeypatch.setenv("MLP_ROLE", "worker")
    assert env.role == "PS"


def test_a_number_that_is_none_is_named():
    with pytest.raises(ValueError, match="expected a whole number in MLP_PORT, got 'x'"):
        MLPEnv({"MLP_PORT": "x"})


@pytest.mark.req("NT-MLP-T3")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]"])
def test_an_open_port_answers_and_a_closed_one_does_not(host):
    with listening(host.strip("[]")) as port:
        assert check_port(host, port)
    start = time.monotonic()
    assert not check_port(host, port, timeout=0.3)
    assert 0.25 < time.monotonic() - start < 5


@pytest.mark.req("NT-MLP-T3")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_that_accepts_nobody_is_no_answer(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with listening(host, backlog=0) as port, contextlib.ExitStack() as stack:
        for _ in range(4):  # fill the queue of connections that nobody accepts
            client = stack.enter_context(socket.socket(family))
            client.setblocking(False)
            client.connect_ex((host, port))
        assert not check_port(host, port, timeout=0.3)


@pytest.mark.req("NT-MLP-T3")
def test_a_refused_connection_is_tried_again_until_the_port_opens(monkeypatch):
    port, servers = closed_port(), []

    def sleep(seconds):
        if not servers:
            servers.append(socket.create_server(("127.0.0.1", port)))

    monkeypatch.setattr(time, "sleep", sleep)
    assert check_port("127.0.0.1", port, timeout=10)
    servers[0].close()


@pytest.mark.req("NT-MLP-T4")
def test_a_wait_ends_with_its_limit(caplog):
    caplog.set_level("INFO")
    env = MLPEnv(
        {"MLP_PS_0_PRIMARY_HOST": "127.0.0.1", "MLP_PS_0_PORT": str(closed_port())},
        wait_seconds=0.01,
    )
    env.wait("ps", timeout=0.1, use_ssh=False)
    assert "ps 0 at 127.0.0.1:" in caplog.text
    assert "did not answer in" in caplog.text


@pytest.mark.req("NT-MLP-T4")
def test_a_wait_ends_when_the_port_answers(caplog):
    caplog.set_level("INFO")
    with listening() as port:
        env = MLPEnv({"MLP_PS_0_PRIMARY_HOST": "127.0.0.1", "MLP_SSH_PORT": str(port)})
        env.wait("ps")
    assert f"ps 0 at 127.0.0.1:{port} answers" in caplog.text


@pytest.mark.req("NT-MLP-T4")
def test_there_is_no_wait_without_a_host(caplog):
    caplog.set_level("INFO")
    MLPEnv({}).wait("ps")
    assert "there is no host of ps 0 to wait for" in caplog.text


@pytest.mark.dist
@pytest.mark.req("NT-MLP-T4")
def test_a_process_that_joins_ends_with_the_other_one():
    program = (
        "import sys; from monolith.cluster.discovery.mlp_env import MLPEnv\n"
        "env = MLPEnv({'MLP_WORKER_0_PRIMARY_HOST': '127.0.0.1', 'MLP_SSH_PORT': sys.argv[1]},\n"
        "             wait_seconds=0.1, join_seconds=0.3)\n"
        "print('joining', flush=True); env.join(); print('never')\n"
    )
    with listening() as port:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(port)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "joining\n"
        time.sleep(0.5)
        assert process.poll() is None
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
