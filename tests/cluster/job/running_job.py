"""A job whose servers are threads of this process, on sockets of this machine."""

import contextlib

import torch

from monolith.cluster.job.dense_shard import DenseShard, trained_parameters
from monolith.cluster.job.job_client import JobClient
from monolith.cluster.job.served_dense import ServedDense
from monolith.cluster.server_host import ServerHost
from monolith.cluster.zmq.connect import connect_servers
from monolith.cluster.zmq.server_loop import ServerLoop

ANY_PORT = "tcp://127.0.0.1:0"


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def sgd(module):
    return torch.optim.SGD(module.parameters(), 0.5, momentum=0.9)


class RunningJob:
    """Servers of a job, and the connections of its workers; close it.

    Attributes:
        hosts: The servers.
        loops: What serves them.
    """

    def __init__(self, num_servers=2, num_workers=2, *, make_model=model, make_optimizer=sgd):
        self.num_workers, self._make = num_workers, (make_model, make_optimizer)
        self._stack = contextlib.ExitStack()
        self.hosts, self.loops = [], []
        for index in range(num_servers):
            module, optimizer = self.dense()
            shard = DenseShard(trained_parameters(module, optimizer), optimizer, index, num_servers)
            host = ServerHost(index, num_servers, dense=shard)
            self._stack.callback(host.close)
            self.hosts.append(host)
            self.loops.append(self._stack.enter_context(ServerLoop(host, ANY_PORT)))

    def dense(self):
        make_model, make_optimizer = self._make
        module = make_model()
        return module, make_optimizer(module)

    @property
    def state(self):
        return self.hosts[0].job.state

    def servers(self, worker=0, **options):
        addresses = [loop.address for loop in self.loops]
        options = {"worker": (worker, self.num_workers), "timeout_seconds": 60.0, **options}
        return self._stack.enter_context(connect_servers(addresses, **options))

    def client(self, worker=0, *, joins=True, facts=None, hold_seconds=30.0, **options):
        servers = self.servers(worker, **options)
        job = self._stack.enter_context(JobClient(servers, hold_seconds=hold_seconds))
        if joins:
            job.join([1000 + job._start], facts or {})
        return job

    def served(self, job, *, wants_values=True):
        module, optimizer = self.dense()
        served = ServedDense(job, module, optimizer, wants_values=wants_values)
        served.module, served.optimizer = module, optimizer
        return served

    def close(self):
        self._stack.close()


def step(job, progress=(), gradients=((), ())):
    """Make a step; the answers of the servers."""
    answers = []
    lists = [list(of_server) for of_server in gradients]
    with job.pushing(lists, "", list(progress), answers, wants_values=False):
        pass
    return answers
