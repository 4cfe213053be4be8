import pytest
import torch

from monolith.data import Batch
from monolith.errors import FailedPreconditionError
from monolith.nn import Feature, Features
from monolith.ops import Ragged
from monolith.optim import Optimizer
from monolith.table.optimizers import Adagrad
from monolith.train import Hook, Mode, Trainer, TrainSettings
from tests.train.tasks import Clicks, Counting, Losses, Raise, StopAfter, clicks, counted, state_of


def run(settings=None, task=None, **options):
    """Return the closed trainer of a run, with its state and losses."""
    losses = Losses()
    with Trainer(task or Clicks(), settings, hooks=[losses], clock=lambda: 100, **options) as it:
        it.fit()
        it.state, it.losses = state_of(it), losses.losses
    return it


def test_a_run_is_the_loop_that_one_would_write():
    task = Clicks()
    torch.manual_seed(0)
    features, model = Features(Clicks.features), task.build()
    optimizer = Optimizer([features, model], task.optimizer(model))
    losses = []
    for batch in task.batches:
        optimizer.zero_grad()
        x = torch.cat([features(batch.features).joined, batch.dense["hour"][:, None]], 1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], batch.label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    trained = run()
    assert trained.losses == losses
    assert trained.state[1] == {name: p.tolist() for name, p in model.named_parameters()}


def test_sequential_runs_give_the_same_bits():
    assert run().state == run().state


def test_the_seed_is_that_of_the_dense_model():
    first = run(TrainSettings(seed=1))
    assert run(TrainSettings(seed=1)).state == first.state
    assert run(TrainSettings(seed=2)).state != first.state


def test_a_run_ends_with_its_data():
    result = run().result
    assert (result.ended, result.num_steps, result.num_samples) == ("end of data", 6, 48)


def test_a_run_ends_with_its_steps_and_the_next_goes_on():
    with Trainer(Clicks(), TrainSettings(steps=4)) as trainer:
        assert (trainer.fit().ended, trainer.run.global_step) == ("steps", 4)
        assert (trainer.fit().num_steps, trainer.run.global_step) == (4, 8)


def test_a_hook_ends_a_run():
    with Trainer(Clicks()) as trainer:
        result = trainer.fit(hooks=[StopAfter(2)])
    assert (result.ended, result.num_steps) == ("stopped", 2)


def test_a_run_without_data_has_no_steps():
    assert run(task=Clicks([])).result.num_steps == 0


def test_bf16_computes_the_dense_part_in_less_precision():
    exact, rough = run().losses, run(TrainSettings(precision="bf16")).losses
    assert exact != rough
    assert rough == pytest.approx(exact, abs=0.02)


def test_clipping_bounds_one_norm_of_dense_parameters_and_tables(monkeypatch):
    norms = []

    def step(optimizer):
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        norms.append(torch.stack([grad.norm() for grad in grads]).norm().item())

    monkeypatch.setattr(Optimizer, "step", step)
    for clip_norm in (None, 0.01):
        with Trainer(Clicks(), TrainSettings(steps=1, clip_norm=clip_norm)) as trainer:
            trainer.fit()
    assert norms[0] > 0.1
    assert norms[1] == pytest.approx(0.01, rel=1e-3)


def test_accumulated_batches_are_one_step_of_their_mean():
    apart = clicks(4, size=4)
    joined = [
        Batch(
            {
                name: Ragged.from_lists(
                    [*a.features[name].to_lists(), *b.features[name].to_lists()]
                )
                for name in a.features
            },
            {"hour": torch.cat([a.dense["hour"], b.dense["hour"]])},
            {"click": torch.cat([a.label, b.label])},
        )
        for a, b in (apart[:2], apart[2:])
    ]
    two = run(TrainSettings(accumulate=2), Clicks(apart))
    one = run(task=Clicks(joined))
    assert two.result.num_steps == one.result.num_steps == 2
    assert two.losses == pytest.approx(one.losses, abs=1e-5)
    assert len(run(task=Clicks(apart)).losses) == 4


def test_the_last_step_accumulates_what_is_left():
    result = run(TrainSettings(accumulate=4)).result
    assert (result.num_steps, result.num_samples) == (2, 48)


def test_threads_hold_for_the_run_alone():
    before, inside = torch.get_num_threads(), []

    class Look(Hook):
        def after_run(self, ctx, results):
            inside.append(torch.get_num_threads())

    with Trainer(Clicks(), TrainSettings(threads=before + 1)) as trainer:
        trainer.fit(hooks=[Look()])
    assert (set(inside), torch.get_num_threads()) == ({before + 1}, before)


def test_a_run_that_fails_gives_its_threads_back():
    before = torch.get_num_threads()
    settings = TrainSettings(threads=before + 1)
    with Trainer(Clicks(), settings) as trainer, pytest.raises(OSError, match="disk is full"):
        trainer.fit(hooks=[Raise(1, OSError("disk is full"))])
    assert torch.get_num_threads() == before


def test_a_scheduler_of_torch_steps_dense_parameters_and_tables():
    class Scheduled(Clicks):
        def schedule(self, optimizer):
            return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1)

    for push in (0, 1):
        trained = run(TrainSettings(push=push), Scheduled())
        rates = [group["lr"] for group in trained.optimizer.param_groups]
        assert rates == pytest.approx([1e-5, 1e-4, 1e-4])
    assert run(task=Scheduled()).losses[-1] != run().losses[-1]


@pytest.mark.parametrize(("accumulate", "trained"), [(1, [0, 1, 2, 4, 5]), (2, [0, 1, 4, 5])])
def test_the_batches_of_a_step_that_failed_are_skipped(accumulate, trained):
    class Failing(Counting):
        def loss(self, model, inputs, batch):
            if batch.label[0] == 3:
                raise ZeroDivisionError
            return super().loss(model, inputs, batch)

    batches, order = iter(counted(6)), Order()
    with Trainer(Failing(), TrainSettings(accumulate=accumulate), hooks=[order]) as trainer:
        with pytest.raises(ZeroDivisionError):
            trainer.fit(batches)
        trainer.fit(batches)
    assert order.labels == trained


class Order(Hook):
    """Records the labels of the trained batches."""

    def __init__(self):
        self.labels = []

    def after_run(self, ctx, results):
        self.labels += [int(part.batch.label[0]) for part in results.value.parts]


def test_a_table_may_have_a_schedule_of_its_own():
    class Scheduled(Clicks):
        features = (
            Feature("user", dim=4, optimizer=Adagrad(lambda step: 0.1 / (1 + step))),
            Feature("item", dim=4, optimizer=Adagrad(0.1)),
        )

    trained, plain = run(task=Scheduled()), run()
    assert trained.state[0]["user"] != plain.state[0]["user"]
    assert trained.losses[0] == plain.losses[0]


def test_evaluation_trains_nothing_and_reads_missing_ids_as_zeros():
    task = Clicks(held_out=clicks(2, seed=5))
    with Trainer(task, TrainSettings(steps=2)) as trainer:
        trainer.fit()
        before = state_of(trainer)
        scores = trainer.evaluate()
        strange = clicks(1)[0]
        ids = {name: Ragged.from_lists([[10**9]] * 8) for name in strange.features}
        zeros = Batch(ids, strange.dense, strange.labels)
        logit = trainer.model(torch.cat([torch.zeros(8, 8), zeros.dense["hour"][:, None]], 1))
        wanted = torch.nn.functional.binary_cross_entropy_with_logits(logit[:, 0], zeros.label)
        assert trainer.evaluate([zeros])["loss"] == pytest.approx(wanted.item())
        assert state_of(trainer) == before
    assert scores["loss"] > 0


def test_an_evaluation_needs_a_batch():
    text = r"^\[Trainer.evaluate\] expected at least one batch, got none$"
    with Trainer(Clicks()) as trainer, pytest.raises(ValueError, match=text):
        trainer.evaluate([])


def test_predictions_come_without_labels():
    class Scored(Clicks):
        def predict(self, model, inputs, batch):
            return model(torch.cat([inputs.pooled.joined, inputs.dense], 1)).squeeze(1).sigmoid()

    batch = clicks(1)[0]
    with Trainer(Scored()) as trainer:
        (output,) = trainer.predict([Batch(batch.features, batch.dense)])
        assert trainer.model.training
    assert (output.loss, output.prediction.shape) == (None, (8,))
    assert not output.prediction.requires_grad


def test_predictions_of_a_task_come_from_its_source():
    with Trainer(Clicks(held_out=clicks(2))) as trainer:
        assert [len(output.prediction) for output in trainer.predict()] == [8, 8]


def test_the_source_is_asked_by_mode():
    modes = []

    class Asked(Clicks):
        def source(self, mode):
            modes.append(mode)
            return clicks(1)

    with Trainer(Asked()) as trainer:
        trainer.fit()
        trainer.evaluate()
        list(trainer.predict())
    assert modes == [Mode.TRAIN, Mode.EVAL, Mode.PREDICT]


def test_a_closed_trainer_has_closed_its_tables():
    with Trainer(Clicks()) as trainer:
        trainer.fit()
    trainer.close()
    with pytest.raises(FailedPreconditionError):
        len(trainer.features.tables["user"])


def test_hooks_of_trainer_run_and_task_are_called_in_this_order():
    names = []

    class Named(Hook):
        def __init__(self, name):
            self._name = name

        def begin(self):
            names.append(self._name)

    class Hooked(Clicks):
        def hooks(self):
            return [Named("task")]

    with Trainer(Hooked(), hooks=[Named("trainer")]) as trainer:
        trainer.fit(hooks=[Named("run")])
    assert names == ["trainer", "run", "task"]
