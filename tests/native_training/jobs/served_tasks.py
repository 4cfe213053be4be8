"""Tasks whose dense parameters live on two servers, and workers that end in the middle of a job."""

import contextlib

import torch

import monolith as ml
from monolith.data import Batch
from monolith.ops import Ragged
from monolith.table import Zeros
from monolith.table.optimizers import SGD
from monolith.table.routing import PartitionRouting
from monolith.train import Hook, TrainSettings
from monolith.train.roles.worker import run_worker
from tests.cluster.server_processes import connect

MODULE = "tests.native_training.jobs.served_tasks"


def key_of(server):
    """An id of which one of two servers has the row."""
    keys = torch.arange(100)
    return int(keys[PartitionRouting(2).shard_of(keys) == server][0])


KEYS = torch.tensor([key_of(0), key_of(1)])


class Vector(torch.nn.Module):
    """The parameters v0, on server 0, and v1, on server 1."""

    def __init__(self):
        super().__init__()
        self.v0 = torch.nn.Parameter(torch.zeros(1))
        self.v1 = torch.nn.Parameter(torch.zeros(1))

    def forward(self, rows):
        return rows.sum() + self.v0.sum() + self.v1.sum()


class Adds(ml.Task):
    """Each step adds 1 to v0, to v1, and to a row of each server."""

    features = (ml.Feature("user", dim=1, optimizer=SGD(1.0), initializer=Zeros()),)
    missing = "zeros"
    label = ()

    def source(self, mode):
        return [Batch({"user": Ragged.from_lists([KEYS.tolist()])})] * 100

    def build(self):
        return Vector()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=1.0)

    def loss(self, model, inputs, batch):
        loss = -model(inputs.pooled["user"])
        return loss, loss.detach().expand(1)


class Fives(Adds):
    """The same from parameters that are 5."""

    def build(self):
        vector = Vector()
        for parameter in vector.parameters():
            torch.nn.init.constant_(parameter, 5.0)
        return vector


NUM_COMPILED: list[int] = []


def counting(graph, inputs):
    """A backend that counts how often a model is compiled."""
    NUM_COMPILED.append(1)
    return graph.forward


class Compiled(Adds):
    """The same with a compiled model."""

    def build(self):
        return torch.compile(Vector(), backend=counting)


class LeftError(Exception):
    """The worker leaves without an end of its run."""


class LeaveHook(Hook):
    """Calls a function after some step, and leaves."""

    def __init__(self, step, call=lambda: None):
        self._step, self._call = step, call

    def after_run(self, ctx, results):
        if ctx.run.global_step >= self._step:
            self._call()
            raise LeftError


class CallHook(Hook):
    """Calls a function with the number of the step after each step."""

    def __init__(self, call):
        self._call = call

    def after_run(self, ctx, results):
        self._call(ctx.run.global_step)


@contextlib.contextmanager
def leaving():
    with contextlib.suppress(LeftError):
        yield
        raise AssertionError("the worker has come to an end")


def lead(servers, hooks, *, task=None, began=None, num_workers=1, checkpoint=None, **settings):
    """Be the chief of the servers' job until a hook, or `began`, leaves."""
    with leaving(), connect(servers, worker=(0, num_workers)) as connected:
        run_worker(
            task or Adds(),
            TrainSettings(**{"save_every": 0, **settings}),
            connected,
            hooks=hooks,
            began=began,
            checkpoint=checkpoint,
        )


def values_of(trainer):
    """(parameter, row) of each server, read from the servers."""
    answers = trainer.job.read_dense([-1, -1])
    rows = trainer.features.tables["user"].lookup(KEYS)
    return [
        (value.item(), row.item()) for (_, [(_, value)]), row in zip(answers, rows, strict=True)
    ]


def start_servers(nursery, task="Adds", **options):
    return [start_server(nursery, index, task, **options) for index in range(2)]


def start_server(nursery, index, task="Adds", **options):
    return nursery.start(index, 2, options=[f"{MODULE}.{task}"], **options)
