"""`ServedDense`: copies of the servers' parameters in the model of a worker."""

import functools

import pytest
import torch

from monolith.cluster.job.served_dense import ServedDense
from monolith.errors import DataLossError, InvalidArgumentError

from .running_job import RunningJob, model, sgd

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def running():
    running = RunningJob(2, 1)
    yield running
    running.close()


@pytest.fixture
def worker(running):
    """A served model whose servers have its values."""
    served = running.served(running.client(0))
    served.send_all()
    return served


def set_gradients(served, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in served.module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def push(served, seed=0):
    set_gradients(served, seed)
    with served.collect():
        pass


def values_of(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("wants_values", [True, False])
def test_steps_are_those_of_the_optimizer_and_are_written_in_place(running, wants_values):
    served = running.served(running.client(0), wants_values=wants_values)
    served.send_all()
    local = model()
    optimizer = sgd(local)
    addresses = [parameter.data_ptr() for parameter in served.module.parameters()]
    for number in range(3):
        for copy in (served.optimizer, optimizer):
            copy.param_groups[0]["lr"] = 0.5 / (number + 1)
        push(served, number)
        for own, other in zip(local.parameters(), served.module.parameters(), strict=True):
            own.grad = other.grad.clone()
        optimizer.step()
        if not wants_values:
            served.fetch()
        assert not equal(values_of(served.module), values_of(local))
        served.refresh()
        assert equal(values_of(served.module), values_of(local))
    assert [parameter.data_ptr() for parameter in served.module.parameters()] == addresses
    assert served.versions == [3, 3]


def test_the_state_of_the_optimizer_comes_back(running, worker):
    push(worker)
    other = running.served(worker._job)
    other.take_all()
    momenta = [state["momentum_buffer"] for state in other.optimizer.state.values()]
    assert equal(values_of(other.module), values_of_servers(running))
    assert equal(momenta, [p.grad for p in worker.module.parameters()])
    other.send_all()
    assert other.versions == [0, 0]


def values_of_servers(running):
    values = dict(v for host in running.hosts for v in host._dense.read(-1)[1])
    return [values[name] for name, _ in model().named_parameters()]


def test_steps_that_a_copy_misses_are_counted(running, worker):
    push(worker)
    push(worker)
    assert worker.staleness == 1
    worker.refresh()
    push(worker)
    assert worker.staleness == 0


def test_a_push_that_begins_after_a_refresh_counts_from_the_copies_of_its_gradients(worker):
    push(worker)
    set_gradients(worker)
    late = worker.collect()
    worker.refresh()
    with late:
        pass
    assert worker.staleness == 1


def test_servers_without_parameters_are_never_stale():
    one = functools.partial(torch.nn.Linear, 1, 1, bias=False)
    running = RunningJob(2, 1, make_model=one)
    served = running.served(running.client(0))
    served.send_all()
    for _ in range(3):
        push(served)
        served.refresh()
    assert served.staleness == 0
    running.close()


def test_a_task_without_parameters_is_served():
    running = RunningJob(2, 1, make_model=torch.nn.Identity, make_optimizer=lambda module: None)
    served = ServedDense(running.client(0), torch.nn.Identity(), None, wants_values=True)
    assert not served.has_parameters
    served.send_all()
    served.take_all()
    with served.collect():
        pass
    served.refresh()
    assert (served.staleness, served.num_steps, served.num_workers) == (0, 1, 1)
    running.close()


def test_a_server_that_came_back_older_is_counted(worker, caplog):
    push(worker)
    push(worker)
    worker.refresh()
    worker._job.import_dense([state._replace(version=1) for state in worker._job.export_dense()])
    worker.fetch()
    worker.refresh()
    assert worker.num_rollbacks == 2
    assert "came back with dense parameters of version 1, this worker had version 2" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_refused_and_nothing_is_sent(running, worker, value):
    set_gradients(worker)
    worker.module[0].bias.grad[1] = value
    with pytest.raises(InvalidArgumentError, match=r"got Inf or NaN \(parameter '0.bias'\)"):
        worker.collect()
    assert [host._dense.version for host in running.hosts] == [0, 0]


def test_a_sparse_gradient_is_refused(worker):
    bias = worker.module[0].bias
    bias.grad = torch.ones(4).to_sparse()
    with pytest.raises(InvalidArgumentError, match=r"got one of torch.sparse_coo .parameter '0.b"):
        worker.collect()


def test_progress_travels_with_the_next_step(running, worker):
    worker.note_progress([('[0, "a"]', 1, False, 7)])
    before = running.state.counts().samples
    push(worker)
    assert running.state.counts().samples == before + 7


def test_untrained_values_are_those_of_the_chief(running, worker):
    worker.module[1].running_mean += 3
    worker.send_untrained()
    other = running.served(worker._job)
    other.take_untrained()
    assert other.module[1].running_mean.tolist() == [3.0] * 4
    assert [name for name, _ in other.untrained()] == [
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    ]


class Saved:
    """A checkpoint of a model and its optimizer.

    Attributes:
        trainer: Document of the trainer.
    """

    prefix = "model.ckpt-1"

    def __init__(self, module, optimizer, versions=(5, 6)):
        self.trainer = {"saveables": {"optimizer": {}}, "dense_versions": list(versions)}
        self.tensors = {f"model.{n}": v for n, v in module.state_dict().items()}
        self.state = optimizer.state_dict()

    def read_trainer(self):
        return self.trainer

    def read_parts(self, where, names, states):
        return {name: self.tensors[name] for name in names}, dict.fromkeys(states, self.state)

    def read_dense(self, names):
        return {name: self.tensors[name] for name in names}


def test_a_checkpoint_gives_each_server_its_values_and_state(running, worker):
    push(worker)
    worker.take_all()
    saved = Saved(worker.module, worker.optimizer)
    states = [worker.read_checkpoint(saved, server) for server in range(2)]
    exported = worker._job.export_dense()
    assert [state.version for state in states] == [5, 6]
    for state, other in zip(states, exported, strict=True):
        assert state.tree == other.tree
        assert equal(dict(state.values).values(), dict(other.values).values())
        assert equal(dict(state.tensors).values(), dict(other.tensors).values())


def test_versions_of_another_number_of_servers_are_none(worker):
    saved = Saved(worker.module, worker.optimizer, versions=[1, 2, 3])
    assert worker.read_checkpoint(saved, 0).version == 0


def test_an_optimizer_with_other_groups_is_refused(worker):
    saved = Saved(worker.module, worker.optimizer)
    saved.state["param_groups"][0]["params"].pop()
    with pytest.raises(DataLossError, match=r"4 parameters in a group .* in model.ckpt-1, got 3"):
        worker.read_checkpoint(saved, 0)


def test_buffers_of_a_checkpoint_are_taken(running, worker):
    saved = Saved(worker.module, worker.optimizer)
    saved.tensors["model.1.running_var"] = torch.full((4,), 9.0)
    del saved.tensors["model.1.running_mean"]
    worker.read_untrained(saved)
    assert worker.module[1].running_var.tolist() == [9.0] * 4
