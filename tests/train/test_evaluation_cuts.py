"""Evaluations of one version: cuts of the tables and copies of the dense model."""

import threading

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from monolith.cluster import LocalServers
from monolith.errors import AbortedError, FailedPreconditionError
from monolith.train import Hook, Trainer, TrainSettings
from monolith.train.run_state import DenseCopies
from tests.cluster.direct_connection import remote_servers
from tests.train.tasks import Clicks, Counting, clicks

HELD_OUT = clicks(4, seed=5)


class Normed(Clicks):
    """Clicks with batch norm, so that the figures depend on buffers."""

    def build(self):
        return torch.nn.Sequential(torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 1))


def trained(servers=None, task=None, **settings):
    trainer = Trainer(task or Normed(held_out=HELD_OUT), TrainSettings(**settings), servers)
    trainer.fit()
    return trainer


def changing(trainer, batches=HELD_OUT):
    """Batches, between which the tables and the dense tensors change."""
    for batch in batches:
        yield batch
        for table in trainer.features.tables.values():
            keys = torch.arange(40)
            table.apply_gradients(keys, torch.ones(40, table.dim))
        with torch.no_grad():
            for tensor in trainer.model.state_dict().values():
                tensor.add_(1)


def cut_bytes(trainer):
    return [t.memory_report()["cut_bytes"] for t in trainer.features.tables.values()]


def assert_no_cut_is_open(trainer):
    assert cut_bytes(trainer) == [0, 0]
    for table in trainer.features.tables.values():
        table.clear()  # refused while a cut is open


@pytest.mark.parametrize("make", [lambda: None, lambda: LocalServers(2), lambda: remote_servers(2)])
def test_a_cut_gives_the_figures_of_the_tables_to_the_bit(make):
    with trained(make()) as trainer:
        plain = trainer.evaluate(at_cut=False)
        assert trainer.evaluate(at_cut=True) == plain
        assert trainer.evaluate() == plain
        assert_no_cut_is_open(trainer)


def test_a_task_without_features_is_evaluated_at_a_cut():
    class Dense(Clicks):
        features = ()

        def build(self):
            return torch.nn.Linear(1, 1)

        def loss(self, model, inputs, batch):
            logit = model(inputs.matrix).squeeze(1)
            return logit.square().mean(), logit.sigmoid()

    with trained(task=Dense(held_out=HELD_OUT)) as trainer:
        assert trainer.evaluate(at_cut=True) == trainer.evaluate(at_cut=False)


def test_changes_during_an_evaluation_do_not_show():
    with trained() as trainer:
        before = trainer.evaluate(at_cut=False)
        assert trainer.evaluate(changing(trainer), at_cut=True) == before
        assert_changed(trainer, before)


def assert_changed(trainer, before):
    assert trainer.evaluate(at_cut=False)["loss"] != before["loss"]


def test_without_a_cut_they_do():
    with trained() as trainer:
        before = trainer.evaluate(at_cut=False)
        assert trainer.evaluate(changing(trainer), at_cut=False) != before


def test_the_model_has_its_own_tensors_again_with_what_was_written():
    with trained() as trainer:
        tensors = dict(trainer.model.named_parameters()) | dict(trainer.model.named_buffers())
        values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        trainer.evaluate(changing(trainer), at_cut=True)
        after = dict(trainer.model.named_parameters()) | dict(trainer.model.named_buffers())
        assert all(after[name] is tensor for name, tensor in tensors.items())
        for name, value in values.items():
            torch.testing.assert_close(after[name].detach(), value + 4)
        trainer.fit()  # the optimizer knows them still


@pytest.mark.parametrize(("worker", "verbs"), [((0, 1), {"pull"}), ((1, 2), {"cut_lookup"})])
def test_clients_that_share_tables_evaluate_at_a_cut(worker, verbs):
    calls = []
    with remote_servers(2, calls, worker=worker) as servers, trained(servers) as trainer:
        calls.clear()
        trainer.evaluate()
        assert {verb for _, verb, _ in calls} & {"pull", "cut_lookup"} == verbs
        calls.clear()
        trainer.evaluate(at_cut=worker == (0, 1))
        assert {verb for _, verb, _ in calls} & {"pull", "cut_lookup"} != verbs


def failing(error):
    yield HELD_OUT[0]
    raise error


def test_an_error_in_the_middle_closes_the_cuts():
    with trained() as trainer:
        with pytest.raises(OSError, match="disk"):
            trainer.evaluate(failing(OSError("disk")), at_cut=True)
        assert_no_cut_is_open(trainer)
        assert trainer.model.training


def test_an_evaluation_without_a_batch_closes_the_cuts():
    with trained() as trainer:
        with pytest.raises(ValueError, match="expected at least one batch"):
            trainer.evaluate([], at_cut=True)
        assert_no_cut_is_open(trainer)


def test_an_error_of_the_loss_closes_the_cuts_and_puts_the_tensors_back():
    class Failing(Normed):
        def loss(self, model, inputs, batch):
            if not model.training:
                raise ArithmeticError
            return super().loss(model, inputs, batch)

    with trained(task=Failing(held_out=HELD_OUT)) as trainer:
        tensors = list(trainer.model.parameters())
        with pytest.raises(ArithmeticError):
            trainer.evaluate(at_cut=True)
        pairs = zip(trainer.model.parameters(), tensors, strict=True)
        assert all(one is other for one, other in pairs)
        assert_no_cut_is_open(trainer)


def test_a_fifth_cut_of_a_table_is_refused_and_none_stays_open():
    with trained() as trainer:
        first, last = trainer.features.tables.values()
        snapshots = [last.cut() for _ in range(4)]
        with pytest.raises(FailedPreconditionError, match="expected at most 4 open cuts"):
            trainer.evaluate(at_cut=True)
        first.clear()
        for snapshot in snapshots:
            snapshot.close()


def test_a_background_save_and_an_evaluation_have_cuts_at_once(tmp_path):
    class Evaluating(Hook):
        def __init__(self):
            self.figures = []

        def after_run(self, context, results):
            at_cut, plain = (trainer.evaluate(at_cut=cut) for cut in (True, False))
            assert at_cut == plain
            self.figures.append(at_cut)

    task = Normed(clicks(12), HELD_OUT)
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=1, save_rate=0.05)
    hook = Evaluating()
    with Trainer(task, settings, hooks=[hook]) as trainer:
        result = trainer.fit()
        assert len(hook.figures) == 12
        assert result.saves.num_saved >= 1
        assert_no_cut_is_open(trainer)


def test_an_evaluation_at_a_cut_sees_all_updates():
    settings = TrainSettings(prefetch=2, push=1)
    seen = []

    class Evaluated(Counting):
        def source(self, mode):
            return self.batches if mode == "train" else self.batches[:1]

    class Evaluating(Hook):
        def after_run(self, context, results):
            seen.append(trainer.evaluate(at_cut=True)["loss"])

    with Trainer(Evaluated(6), settings, hooks=[Evaluating()]) as trainer:
        trainer.fit()
    assert seen == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]


def test_quiet_waits_for_the_running_update():
    applied, seen = threading.Event(), []

    class Quiet(Hook):
        def after_run(self, context, results):
            with trainer.quiet():
                seen.append(applied.is_set())

    with Trainer(Counting(1), TrainSettings(push=1), hooks=[Quiet()]) as trainer:
        begin = trainer.optimizer.begin_step

        def begin_step():
            apply = begin()
            return lambda: (threading.Event().wait(0.05), apply(), applied.set())

        trainer.optimizer.begin_step = begin_step
        trainer.fit()
    assert seen == [True]


class Restarting(Normed):
    """A task whose first evaluation meets a server that comes back empty."""

    def __init__(self, servers):
        super().__init__(clicks(6), HELD_OUT)
        self.servers, self.num_evaluations = servers, 0

    def source(self, mode):
        return self.evaluated() if mode == "eval" else super().source(mode)

    def evaluated(self):
        self.num_evaluations += 1
        for i, batch in enumerate(self.held_out):
            if (i, self.num_evaluations) == (2, 1):
                self.servers._connections[1].restart()
            yield batch


def test_an_evaluation_whose_server_comes_back_without_the_cut_is_aborted(tmp_path):
    with remote_servers(2) as servers, Trainer(task := Restarting(servers), None, servers) as one:
        one.fit()
        one.restore(one.save(tmp_path))
        text = r"^\[ShardHost.cut_lookup\] expected the number of an open cut, got \d+: the server"
        with pytest.raises(AbortedError, match=text):
            one.evaluate(at_cut=True)
        assert_no_cut_is_open(one)
        assert task.num_evaluations == 1


def test_a_run_evaluates_anew_when_a_server_came_back_without_the_cut(tmp_path):
    settings = TrainSettings(
        checkpoint_dir=str(tmp_path), save_every=1, background_saves=False, eval_every=4
    )
    with (
        remote_servers(2, worker=(0, 2)) as servers,
        Trainer(task := Restarting(servers), settings, servers) as trainer,
    ):
        result = trainer.fit()
        assert (result.num_steps, result.num_recoveries) == (6, 0)
        assert list(result.evaluations) == [4]
        assert task.num_evaluations == 2
        assert_no_cut_is_open(trainer)


# Copies of dense tensors


def test_a_shared_tensor_has_one_copy():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    model["a"].register_parameter("again", model["a"].weight)
    copies, original = DenseCopies(model), model["a"].weight
    with copies.in_place():
        assert model["a"].weight is model["b"].weight is model["a"].again
        assert model["a"].weight is not original
        assert model["a"].weight.equal(original)
    assert model["a"].weight is model["b"].weight is model["a"].again is original


def test_layers_that_keep_lists_of_their_weights_compute_with_the_copies():
    model, inputs = torch.nn.LSTM(3, 4), torch.ones(2, 1, 3)
    before, copies = model(inputs)[0], DenseCopies(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    with copies.in_place():
        assert model(inputs)[0].equal(before)
    assert not model(inputs)[0].any()


def test_frozen_parameters_stay_frozen_and_lazy_ones_are_left_alone():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LazyLinear(2))
    model[0].weight.requires_grad_(False)
    lazy = model[1].weight
    with DenseCopies(model).in_place():
        assert [p.requires_grad for p in model[0].parameters()] == [False, True]
        assert model[1].weight is lazy


@pytest.mark.thorough
def test_a_compiled_model_is_evaluated_at_a_cut_by_the_same_graph():
    counter = CompileCounterWithBackend("aot_eager")

    class Compiled(Normed):
        def build(self):
            return torch.compile(super().build(), backend=counter)

    torch._dynamo.reset()
    with Trainer(Compiled(held_out=HELD_OUT)) as trainer:
        before = trainer.evaluate(at_cut=False)
        num_graphs = counter.frame_count
        assert trainer.evaluate(at_cut=True) == before
        assert trainer.evaluate(changing(trainer), at_cut=True) == before
        assert counter.frame_count == num_graphs
        assert_changed(trainer, before)
    torch._dynamo.reset()
