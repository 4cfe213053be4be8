"""Jobs of two servers and two workers that find each other by each discovery."""

import contextlib
import json
import os
import signal
import socket
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith.cluster.discovery import open_discovery
from monolith.cluster.zmq.connect import find_servers
from monolith.table import Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD
from monolith.table.routing import PartitionRouting
from tests.cluster.discovery.consul_server import ConsulServer
from tests.cluster.discovery.role_nursery import Roles
from tests.suites.discovery import until
from tests.suites.table_base import NOW, keys

pytestmark = pytest.mark.dist

LIMIT_SECONDS = 15.0  # on a machine that others use; the page has measured figures

TASK = """
import torch
import monolith as ml

class Clicks(ml.Task):
    features = (ml.Feature("user", dim=4),)

    def source(self, mode):
        return ml.data.parquet(self.settings.data[mode]).batch(self.settings.batch_size)

    def build(self):
        return torch.nn.Linear(4, 1)

    def loss(self, model, inputs, batch):
        logit = model(inputs.pooled["user"]).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, batch.label)
        return loss, logit.sigmoid()
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    table = pa.table({"user": range(512), "label": [0.0, 1.0] * 256})
    pq.write_table(table, folder / "train.parquet")
    (folder / "task.py").write_text(TASK)
    return folder


@pytest.fixture(scope="module")
def roles(tmp_path_factory):
    roles = Roles(tmp_path_factory.mktemp("roles"))
    roles.start("ready", "--help")
    roles.wait("ready")  # so that the time of a job has no imports
    yield roles
    roles.close()


@pytest.fixture(scope="module")
def consul():
    server = ConsulServer()
    yield server
    server.close()


def tf_config(kind, index):
    """The variable of each process of a job on free ports."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in free]
    cluster = {"ps": addresses[:2], "chief": addresses[2:3], "worker": addresses[3:]}
    return {"cluster": cluster, "task": {"type": kind, "index": index}}


@pytest.fixture(params=["file", "zk", "consul", "tf-config"])
def uri(request, tmp_path):
    if request.param == "file":
        return f"file:{tmp_path / 'job'}"
    if request.param == "tf-config":
        return "tf-config:"
    if request.param == "zk":
        return f"zk://{request.getfixturevalue('zookeeper').hosts}/job"
    return f"consul://{request.getfixturevalue('consul').address}/job"


@pytest.mark.req("NT-SD-T4")
def test_a_job_finds_itself_and_trains(roles, files, uri, monkeypatch):
    monkeypatch.chdir(files)
    task, name = files / "task.py", uri.partition(":")[0]
    sizes = {"ps": ["--num-servers", 2], "worker": ["--num-workers", 2, "--num-servers", 2]}
    cluster = tf_config("ps", 0)["cluster"]
    start = time.monotonic()
    for kind, option in (("ps", "--discovery"), ("worker", "--servers")):
        for index in range(2):
            words, more = ["--index", index, *sizes[kind]], {}
            if uri == "tf-config:":
                part = ("ps", index) if kind == "ps" else [("chief", 0), ("worker", 0)][index]
                value = {
                    "cluster": cluster,
                    "task": dict(zip(("type", "index"), part, strict=True)),
                }
                words, more = [], {"TF_CONFIG": json.dumps(value)}
            if kind == "worker":
                words += ["--data", files / "train.parquet", "--set", "batch_size=16"]
            roles.start(f"{name}-{kind}-{index}", kind, task, option, uri, *words, variables=more)
    workers = [f"{name}-worker-{index}" for index in range(2)]
    until(lambda: all("connected to 2 servers" in roles.text(each) for each in workers), 60)
    found = time.monotonic() - start
    print(f"{name}: found after {found:.2f} s")
    all_of_job = [*workers, *(f"{name}-ps-{index}" for index in range(2))]
    statuses = {each: roles.wait(each) for each in all_of_job}
    assert statuses == dict.fromkeys(all_of_job, 0), [roles.text(each) for each in all_of_job]
    assert "job: 32 steps, 512 samples, 0 trained again" in roles.text(workers[0])
    assert found < LIMIT_SECONDS


def table_of(servers):
    config = TableConfig("user", Segment(1, SGD(1.0), Zeros()))
    return servers.table(config, PartitionRouting(len(servers)), lambda: NOW)


def start_servers(roles, uri, prefix, num=2):
    names = [f"{prefix}-{index}" for index in range(num)]
    pids = [
        roles.start(name, "ps", "--index", index, "--num-servers", num, "--discovery", uri)
        for index, name in enumerate(names)
    ]
    until(lambda: all("listens at" in roles.text(name) for name in names), 60)
    return pids


def queries(consul):
    return sum(path.startswith("/v1/health/") for _, path in consul.calls)


def test_steps_make_no_calls_of_the_discovery(roles, consul):
    uri = f"consul://{consul.address}/steps"
    pids = start_servers(roles, uri, "steps")
    with (
        contextlib.closing(open_discovery(uri)) as discovery,
        find_servers(discovery, 2) as servers,
    ):
        table = table_of(servers)
        threading.Event().wait(3)  # the thread that asks ends two seconds after the connection
        before = queries(consul)
        for _ in range(300):
            table.apply_gradients(keys(1, 2, 3), keys(1, 1, 1).float().unsqueeze(1))
            table.lookup(keys(1, 2, 3))
        assert before > 0
        assert queries(consul) == before
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    until(lambda: open_discovery(uri).query("ps") == {})  # a server takes its address back


@pytest.mark.parametrize("kind", ["zk", "consul"])
def test_a_client_follows_a_server_to_another_address(roles, request, kind):
    hosts = {"zk": lambda: request.getfixturevalue("zookeeper").hosts}
    host = hosts.get(kind, lambda: request.getfixturevalue("consul").address)()
    uri = f"{kind}://{host}/moved"
    (pid,) = start_servers(roles, uri, f"moved-{kind}", 1)
    with (
        contextlib.closing(open_discovery(uri)) as discovery,
        find_servers(discovery, 1) as servers,
    ):
        first = discovery.wait_change("ps", {}, 20)
        os.kill(pid, signal.SIGTERM)
        until(lambda: discovery.query("ps") == {})
        start_servers(roles, uri, f"moved-{kind}-again", 1)
        second = discovery.wait_change("ps", {}, 20)
        assert second.keys() == {0}
        assert second != first
        assert table_of(servers).lookup(keys(1)).tolist() == [[0.0]]
