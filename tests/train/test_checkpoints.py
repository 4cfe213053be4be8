import pyarrow as pa
import pytest
import torch

from monolith import data
from monolith.checkpoint import existing_checkpoints, find, open_checkpoint
from monolith.checkpoint.state import (
    MonolithCheckpointState,
    read_monolith_checkpoint_state,
    write_monolith_checkpoint_state,
)
from monolith.cluster import LocalServers
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.nn import Feature
from monolith.train import CheckpointHook, EarlyStop, Hook, ReportHook, Trainer, TrainSettings
from monolith.train.saves.checkpoint_hook import Pace
from tests.train.tasks import Clicks, Counting, StopAfter, clicks, counted, state_of


def names(path):
    return sorted(prefix.rpartition("-")[2] for prefix in existing_checkpoints(path))


class Numbers(Counting):
    """A task whose labels are the numbers of its samples, one in a batch.

    Attributes:
        labels: Labels of the trained batches.
    """

    def __init__(self, number=10):
        super().__init__()
        self._number, self.labels = number, []

    def source(self, mode):
        columns = {"id": [7] * self._number, "label": [float(i) for i in range(self._number)]}
        return data.arrow_table(pa.table(columns), label="label").batch(1)

    def loss(self, model, inputs, batch):
        self.labels.append(int(batch.label[0]))
        return super().loss(model, inputs, batch)


def test_checkpoints_are_saved_every_n_steps_and_at_the_end(tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=4, keep=0, busy_save="wait")
    with Trainer(Counting(10), settings) as trainer:
        trainer.fit()
    assert names(tmp_path) == ["10", "4", "8"]
    assert find(tmp_path).step == 10


def test_the_newest_checkpoints_are_kept_also_over_runs(tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=1, keep=2, busy_save="wait")
    for number in (3, 2):
        with Trainer(Counting(number), settings) as trainer:
            if number == 2:
                trainer.restore(tmp_path)
            trainer.fit(counted(number))
    assert names(tmp_path) == ["4", "5"]


def test_exempt_checkpoints_of_a_run_stay_and_the_time_of_its_last_save_is_written(tmp_path):
    write_monolith_checkpoint_state(tmp_path, MonolithCheckpointState(["model.ckpt-1"]))
    hook = CheckpointHook(tmp_path, every_steps=1, keep=1, clock=lambda: 77.0)
    with Trainer(Counting(3)) as trainer:
        trainer.fit(hooks=[hook])
    assert names(tmp_path) == ["1", "3"]
    assert read_monolith_checkpoint_state(tmp_path).last_checkpoint_save_timestamp == 77


def test_a_restored_run_reads_an_iterator_from_its_beginning(tmp_path):
    with Trainer(Numbers()) as trainer:
        trainer.fit()
        trainer.save(tmp_path)
    with Trainer(task := Numbers(3)) as trainer:
        trainer.restore(tmp_path)
        with pytest.raises(FailedPreconditionError, match="expected a state of this pipeline"):
            trainer.fit()
        trainer.restore(tmp_path)
        trainer.fit(iter(task.source("train")))
        assert (task.labels, trainer.run.global_step) == ([0, 1, 2], 13)


def test_without_a_pace_only_the_end_is_saved(tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=0)
    with Trainer(Counting(3), settings) as trainer:
        trainer.fit()
    assert names(tmp_path) == ["3"]


def test_a_hook_saves_at_a_pace_in_seconds(tmp_path):
    now = iter(range(1000))
    clock = lambda: float(next(now))  # noqa: E731
    hook = CheckpointHook(tmp_path, every_seconds=1, keep=0, clock=clock, busy="wait")
    with Trainer(Counting(3)) as trainer:
        trainer.fit(hooks=[hook])
    assert names(tmp_path) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("every_steps", "every_seconds", "due"),
    [(None, None, []), (3, None, [3, 6]), (None, 4.0, [2, 4, 6]), (5, 4.0, [2, 4, 6]), (1, 9.0, 6)],
)
def test_the_pace_that_comes_first_counts(every_steps, every_seconds, due):
    now = 0.0
    pace, steps = Pace(every_steps, every_seconds, clock=lambda: now), []
    for step in range(1, 7):
        now = 2.0 * step
        if pace.is_due(step):
            pace.restart(step)
            steps.append(step)
    assert steps == (due if isinstance(due, list) else [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(("prefetch", "push"), [(0, 0), (3, 0), (3, 1)])
def test_a_run_goes_on_with_the_batch_after_the_last_trained_one(tmp_path, prefetch, push):
    settings = TrainSettings(prefetch=prefetch, push=push, checkpoint_dir=str(tmp_path))
    with Trainer(first := Numbers(), settings) as trainer:
        trainer.fit(hooks=[StopAfter(4)])
    with Trainer(second := Numbers(), settings) as trainer:
        assert trainer.restore(tmp_path).step == 4
        assert trainer.fit().num_steps == 6
        row = trainer.features.tables["id"].lookup(torch.tensor([7])).item()
    assert first.labels + second.labels == list(range(10))
    assert row == -10


def test_steps_count_from_the_beginning_of_the_run_that_was_saved(tmp_path):
    settings = TrainSettings(steps=6, checkpoint_dir=str(tmp_path))
    with Trainer(Numbers(), settings) as trainer:
        trainer.fit(hooks=[StopAfter(4)])
    for num_steps in (2, 0):
        with Trainer(Numbers(), settings) as trainer:
            trainer.restore(tmp_path)
            result = trainer.fit()
        assert (result.num_steps, result.ended) == (num_steps, "steps")


def test_a_run_that_had_read_all_data_has_nothing_left_to_do(tmp_path):
    with Trainer(Numbers()) as trainer:
        trainer.fit()
        trainer.save(tmp_path)
    with Trainer(Numbers()) as trainer:
        trainer.restore(tmp_path)
        assert trainer.fit().num_steps == 0
        assert trainer.fit().num_steps == 10  # the next one is a run of its own


def test_a_run_without_a_step_has_nothing_to_report(tmp_path):
    class Refusing(ReportHook):
        def report(self, figures):
            raise AssertionError(figures)

    with Trainer(Numbers()) as trainer:
        trainer.fit()
        trainer.save(tmp_path)
    with Trainer(Numbers()) as trainer:
        trainer.restore(tmp_path)
        figures = trainer.fit(hooks=[Refusing()]).figures
    assert (figures.step, figures.num_samples) == (10, 0)


def test_batches_that_were_read_ahead_of_a_stop_come_after_the_position(tmp_path):
    with Trainer(Numbers(), TrainSettings(prefetch=3)) as trainer:
        batches = iter(trainer.task.source("train"))
        trainer.fit(batches, hooks=[StopAfter(2)])
        trainer.fit(batches, hooks=[StopAfter(2)])
        trainer.save(tmp_path)
    with Trainer(task := Numbers()) as trainer:
        trainer.restore(tmp_path)
        trainer.fit()
    assert task.labels == [4, 5, 6, 7, 8, 9]


def test_figures_go_on_where_they_were(tmp_path):
    class Reports(ReportHook):
        def report(self, figures):
            lines.append((figures.step, figures.num_samples, figures.loss))

    settings, lines = TrainSettings(checkpoint_dir=str(tmp_path), save_every=2, log_every=3), []
    with Trainer(Numbers(), settings) as trainer:
        trainer.fit(hooks=[Reports()])
    whole = lines.copy()
    lines.clear()
    with Trainer(Numbers(), TrainSettings(log_every=3)) as trainer:
        trainer.restore(f"{tmp_path}/model.ckpt-2")
        trainer.save(tmp_path / "again")
        trainer.restore(tmp_path / "again")
        assert trainer.fit(hooks=[Reports()]).num_samples == 8  # of this run
    assert lines == whole
    assert lines[0][:2] == (3, 3)


def test_a_run_in_a_store_goes_on():
    folder = "memory://trainer/run"
    settings = TrainSettings(checkpoint_dir=folder, save_every=2, keep=2, busy_save="wait")
    with Trainer(Numbers(), settings) as trainer:
        trainer.fit(hooks=[StopAfter(5)])
    with Trainer(task := Numbers(), settings) as trainer:
        assert trainer.restore(folder, fallback=True).step == 5
        trainer.fit()
    assert task.labels == [5, 6, 7, 8, 9]
    assert names(folder) == ["10", "9"]


def test_a_source_without_a_position_is_logged(tmp_path, caplog):
    with Trainer(Counting()) as trainer:
        trainer.fit()
        trainer.save(tmp_path)
    with Trainer(Counting()) as trainer:
        trainer.restore(tmp_path)
        trainer.fit()
    assert "the source list has no position in the checkpoint, or no resume" in caplog.text


@pytest.mark.parametrize("num_servers", [0, 2])
def test_rows_and_parameters_go_on_where_they_were(tmp_path, num_servers):
    batches = clicks(8)
    with Trainer(Clicks(batches), servers=2, clock=lambda: 1000) as trainer:
        trainer.fit()
        expected = state_of(trainer)
    with Trainer(Clicks(batches[:5]), servers=num_servers, clock=lambda: 1000) as trainer:
        trainer.fit()
        prefix = trainer.save(tmp_path)
    with Trainer(Clicks(), servers=2 - num_servers, clock=lambda: 1000) as trainer:
        trainer.restore(prefix)
        trainer.fit(batches[5:])
        assert state_of(trainer) == expected


def test_servers_keep_the_restored_state_of_the_optimizer(tmp_path):
    with Trainer(Clicks(), servers=1) as trainer:
        trainer.fit()
        trainer.save(tmp_path)
    with LocalServers(1) as servers:
        with Trainer(Clicks(), servers=servers) as trainer:
            trainer.restore(tmp_path)
        with Trainer(Clicks(), servers=servers) as trainer:
            states = list(trainer.optimizer.dense.state.values())
    assert [int(state["step"]) for state in states] == [6, 6]


class Moving(Clicks):
    """A task whose model replaces a buffer by a new tensor in each step."""

    def build(self):
        model = super().build()
        model.register_buffer("count", torch.zeros(1))
        return model

    def loss(self, model, inputs, batch):
        model.count = model.count + 1
        return super().loss(model, inputs, batch)


def test_a_buffer_that_was_replaced_is_saved_as_it_is(tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=4)
    with Trainer(Moving(), settings) as trainer:
        trainer.fit()
    dense = open_checkpoint(f"{tmp_path}/model.ckpt-4").read_dense(["model.count"])
    assert dense["model.count"].item() == 4


def test_random_numbers_and_the_clock_go_on(tmp_path):
    with Trainer(Counting(), clock=lambda: 50) as trainer:
        trainer.fit()
        trainer.save(tmp_path)
        expected = torch.rand(3).tolist()
    with Trainer(Counting(), clock=lambda: 99) as trainer:
        trainer.restore(tmp_path)
        assert torch.rand(3).tolist() == expected
        assert trainer.clock() == 50


def test_numbers_that_a_source_draws_when_it_begins_change_nothing(tmp_path):
    class Draws(Numbers):
        def source(self, mode):
            torch.rand(3)
            return super().source(mode)

        def loss(self, model, inputs, batch):
            numbers.append(torch.rand(1).item())
            return super().loss(model, inputs, batch)

    numbers = []
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=4)
    with Trainer(Draws(), settings) as trainer:
        trainer.fit()
    with Trainer(Draws()) as trainer:
        trainer.restore(f"{tmp_path}/model.ckpt-4")
        trainer.fit()
    assert numbers[10:] == numbers[4:10]


@pytest.mark.parametrize("value", [float("nan"), 0.1])
def test_an_early_stop_goes_on_counting(tmp_path, value):
    rule = EarlyStop("loss", patience=3)
    settings = TrainSettings(eval_every=1, early_stop=rule, checkpoint_dir=str(tmp_path))
    for hooks, num_steps in (([StopAfter(3)], 3), ([], 1)):
        with Trainer(Counting(9), settings) as trainer:
            trainer.evaluate = lambda: {"loss": value}
            if not hooks:
                trainer.restore(tmp_path)
            assert trainer.fit(hooks=hooks).num_steps == num_steps


def assert_refused_before_the_run(task, directory, text):
    with Trainer(task, TrainSettings(checkpoint_dir=str(directory))) as trainer:
        with pytest.raises(TypeError, match=text):
            trainer.fit()
        assert trainer.run.global_step == 0


def test_a_state_that_cannot_be_saved_is_refused_before_the_run(tmp_path):
    class Odd(Clicks):
        def schedule(self, optimizer):
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
            schedule.odd = object()
            return schedule

    assert_refused_before_the_run(Odd(), tmp_path, r"got object \(scheduler/odd\)")


def test_a_tensor_that_cannot_be_saved_is_refused_before_the_run(tmp_path):
    class Complex(Clicks):
        def build(self):
            model = super().build()
            model.register_buffer("phase", torch.zeros(1, dtype=torch.complex64))
            return model

    text = "got torch.complex64 and torch.strided as 'model.ph"
    assert_refused_before_the_run(Complex(), tmp_path, text)


def test_a_directory_without_checkpoints_is_refused(tmp_path):
    with (
        Trainer(Counting()) as trainer,
        pytest.raises(NotFoundError, match=r"\[Trainer.restore\] expected a checkpoint, got none"),
    ):
        trainer.restore(tmp_path / "none")


def test_a_restore_in_a_run_is_refused(tmp_path):
    class Restore(Hook):
        def after_run(self, ctx, results):
            trainer.restore(tmp_path)

    with (
        Trainer(Counting()) as trainer,
        pytest.raises(FailedPreconditionError, match="expected no fit that runs"),
    ):
        trainer.fit(hooks=[Restore()])


def test_a_changed_model_is_refused_before_a_table_changes(tmp_path):
    class Larger(Clicks):
        def build(self):
            return torch.nn.Linear(9, 2)

    with Trainer(Clicks()) as trainer:
        trainer.fit()
        trainer.save(tmp_path)
    with Trainer(Larger()) as trainer:
        with pytest.raises(InvalidArgumentError, match=r"expected tensor 'model.bias' with shape"):
            trainer.restore(tmp_path)
        assert trainer.features.num_rows() == 0


def test_a_feature_that_the_checkpoint_lacks_is_refused(tmp_path):
    class More(Counting):
        features = (*Counting.features, Feature("more", dim=1))

    with Trainer(Counting()) as trainer:
        trainer.save(tmp_path)
    with Trainer(More()) as trainer, pytest.raises((NotFoundError, ValueError), match="more"):
        trainer.restore(tmp_path)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=3)
    with Trainer(Counting(6), settings) as trainer:
        trainer.fit()
    (tmp_path / "model.ckpt-6.trainer.json").write_bytes(b"{}")
    with Trainer(Counting()) as trainer:
        assert trainer.restore(tmp_path, fallback=True).step == 3
        assert trainer.run.global_step == 3


def test_a_checkpoint_without_a_state_file_is_found(tmp_path):
    with Trainer(Counting()) as trainer:
        trainer.save(tmp_path)
        (tmp_path / "checkpoint").unlink()
        assert trainer.restore(tmp_path).step == 0


def test_checkpoints_without_tables_are_not_saved_at_the_end(tmp_path):
    hook = CheckpointHook(tmp_path, every_steps=2, is_dense_only=True, busy="wait")
    with Trainer(Counting(5), hooks=[hook]) as trainer:
        trainer.fit()
    assert names(tmp_path) == ["2", "4"]
    assert find(tmp_path).table_names == []


def test_checkpoints_are_saved_by_time(tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_seconds=1e-9, busy_save="wait")
    with Trainer(Counting(3), settings) as trainer:
        trainer.fit()
    assert names(tmp_path) == ["1", "2", "3"]
