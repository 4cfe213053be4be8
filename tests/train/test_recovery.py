"""A fit that recovers from an `AbortedError` ends with the bits of a fit without the error."""

import threading

import pytest
import torch

from monolith.checkpoint import find
from monolith.cluster import LocalServers
from monolith.errors import AbortedError, FailedPreconditionError, UnavailableError
from monolith.table import Table
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from monolith.train import CheckpointHook, Hook, Trainer, TrainSettings
from tests.train.resumable import SETTINGS, Clicks, Order
from tests.train.tasks import Clicks as Plain
from tests.train.tasks import Counting, StopAfter, clicks, counted
from tests.train.test_checkpoints import Numbers, names
from tests.train.test_exact_resume import assert_same_end

STEP = 7  # the step in which the error comes; checkpoints are saved after steps 5 and 10
KEPT = ("source", "lookup", "forward", "backward", "before_run", "after_run", "work")
TORN = ("dense", "table")


class Fault:
    """Raises an error in one step, at one of the places of `KEPT` and `TORN`.

    Attributes:
        num_left: Number of times that the error is still raised.
        sessions: Coordinators of the sessions of the run.
    """

    def __init__(self, place, step=STEP, error=AbortedError, times=1):
        self.place, self._step, self._error, self.num_left = place, step, error, times
        self._run = None
        self.sessions = []

    def strike(self, place):
        if place == self.place and self.num_left and self._run.global_step >= self._step:
            self.num_left -= 1
            raise self._error(f"gone in {place}")

    def attach(self, trainer):
        """Let calls of the trainer's parts fail."""
        self._run = trainer.run
        wrap(trainer.features, "read", lambda: self.strike("lookup"))
        if trainer.optimizer.dense is not None:
            wrap(trainer.optimizer.dense, "step", None, lambda: self.strike("dense"))
        wrap(trainer.features.pending.engine, "step", None, lambda: self.strike("table"))
        loss = trainer.task.loss

        def failing_loss(model, inputs, batch):
            value, prediction = loss(model, inputs, batch)
            if model.training:
                self.strike("forward")
                value.register_hook(lambda gradient: self.strike("backward"))
            return value, prediction

        trainer.task.loss = failing_loss
        source = trainer.task.source
        trainer.task.source = lambda mode: Source(source(mode), self)

    def hook(self):
        return Striking(self)


class Striking(Hook):
    """Lets the methods of a hook fail."""

    def __init__(self, fault):
        self._fault = fault

    def after_create_session(self, run, coordinator):
        self._fault.sessions.append(coordinator)

    def before_run(self, ctx):
        self._fault.strike("before_run")
        return lambda: self._fault.strike("work")

    def after_run(self, ctx, results):
        self._fault.strike("after_run")


class Source:
    """A source like a pipeline, whose iterators fail."""

    def __init__(self, pipeline, fault):
        self._pipeline, self._fault = pipeline, fault

    def __iter__(self):
        return Failing(iter(self._pipeline), self._fault)

    def resume(self, position):
        return Failing(self._pipeline.resume(position), self._fault)


class Failing:
    """An iterator that fails as a generator does: it has ended after its error."""

    def __init__(self, batches, fault):
        self._batches, self._fault = batches, fault

    def __next__(self):
        try:
            self._fault.strike("source")
        except BaseException:
            torch.rand(3)  # drawn for the batch that is lost
            self.close()
            raise
        return next(self._batches)

    def __iter__(self):
        return self

    def state_dict(self):
        return self._batches.state_dict()

    def close(self):
        self._batches.close()


def wrap(owner, name, before, after=None):
    call = getattr(owner, name)

    def wrapped(*arguments, **named):
        if before is not None:
            before()
        result = call(*arguments, **named)
        if after is not None:
            after()
        return result

    setattr(owner, name, wrapped)


def settings_of(folder, **options):
    return TrainSettings(**{**vars(SETTINGS), "checkpoint_dir": f"{folder}/saved", **options})


def fit(folder, fault=None, servers=None, **options):
    """Train the task with every kind of state."""
    settings = settings_of(folder, **options)
    task = Clicks("mixed")
    with Trainer(task, settings, servers, clock=lambda: 2_000_000_000) as trainer:
        if fault is not None:
            fault.attach(trainer)
        hooks = [] if fault is None else [fault.hook()]
        return trainer.fit(hooks=[*hooks, Order(folder)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of a fit without errors, and its result."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, fit(folder)


@pytest.mark.req("MN-UTIL-T3")
@pytest.mark.parametrize("servers", [None, 2])
@pytest.mark.parametrize("place", [*KEPT, *TORN])
def test_a_sequential_fit_ends_with_the_bits_of_a_fit_without_the_error(
    whole, tmp_path, place, servers
):
    fault = Fault(place)
    result = fit(tmp_path, fault, servers)
    assert (result.num_recoveries, fault.num_left) == (1, 0)
    assert len(set(fault.sessions)) == 2  # hooks are told of the recovery
    assert_same_end(tmp_path, whole[0])
    expected = whole[1]
    assert (result.ended, result.num_steps) == (expected.ended, expected.num_steps)
    assert result.num_samples == expected.num_samples


@pytest.mark.parametrize("place", ["source", "backward", "table", "after_run"])
def test_a_fit_that_accumulates_gradients_trains_the_same_batches_again(tmp_path, place):
    folders = tmp_path / "whole", tmp_path / "failed"
    for folder, fault in zip(folders, (None, Fault(place)), strict=True):
        folder.mkdir()
        fit(folder, fault, accumulate=2)
    assert_same_end(*folders)


def test_gradients_of_a_step_that_failed_in_its_second_batch_are_dropped():
    class Second(Counting):
        def loss(self, model, inputs, batch):
            loss, prediction = super().loss(model, inputs, batch)
            if len(self.seen) == 4:
                raise AbortedError("gone")
            return loss, prediction

    with Trainer(Second(8), TrainSettings(accumulate=2)) as trainer:
        assert trainer.fit().num_recoveries == 1
        assert trainer.features.tables["id"].lookup(torch.tensor([7])).item() == -4


AHEAD = [(0, 0), (2, 0), (0, 1), (2, 1)]


@pytest.mark.req("MN-UTIL-T3")
@pytest.mark.parametrize("place", [*KEPT, *TORN])
@pytest.mark.parametrize(("prefetch", "push"), AHEAD)
def test_every_batch_is_trained_once_with_prefetch_and_push(tmp_path, place, prefetch, push):
    settings = TrainSettings(
        prefetch=prefetch, push=push, checkpoint_dir=str(tmp_path), save_every=2
    )
    fault = Fault("table" if place == "dense" else place, step=5)
    with Trainer(Numbers(12), settings) as trainer:
        fault.attach(trainer)
        result = trainer.fit(hooks=[fault.hook()])
        assert trainer.features.tables["id"].lookup(torch.tensor([7])).item() == -12
    assert (result.num_recoveries, result.num_steps, result.num_samples) == (1, 12, 12)
    assert result.figures.staleness <= prefetch + push


@pytest.mark.parametrize("servers", [None, 2])
@pytest.mark.parametrize("place", KEPT)
@pytest.mark.parametrize(("prefetch", "push"), AHEAD)
def test_recorded_updates_replayed_into_the_reference_give_the_same_bits(
    monkeypatch, place, prefetch, push, servers
):
    records = []

    def recorded(config, **options):
        record = Record()
        table = Table(config, record=record, **options)
        records.append((table, record))
        return table

    monkeypatch.setattr(
        "monolith.table.Table" if servers else "monolith.train.hosting.Table", recorded
    )
    fault, seen = Fault(place, step=5), []
    task = Plain(Batches(clicks(12)))
    settings = TrainSettings(prefetch=prefetch, push=push)
    with Trainer(task, settings, servers, clock=lambda: 100) as trainer:
        fault.attach(trainer)
        wrap(trainer.optimizer.dense, "step", lambda: seen.append(1))
        assert trainer.fit(hooks=[fault.hook()]).num_recoveries == 1
        assert (len(seen), len(records)) == (12, 2 * (servers or 1))
        for table, record in records:
            reference = ReferenceTable(table.config)
            record.replay(reference)
            keys = torch.arange(20)
            entry, wanted = table.lookup_entry(keys), reference.lookup_entry(keys)
            assert entry.present.any()
            for column, values in entry.rows.columns.items():
                assert torch.equal(values, wanted.rows.columns[column])


class Batches:
    """A source of listed batches that can be read from a position."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        return self.resume({"next": 0})

    def resume(self, position):
        return BatchesAt(self._batches, position["next"])


class BatchesAt:
    def __init__(self, batches, start):
        self._batches, self._next = batches, start

    def __next__(self):
        if self._next == len(self._batches):
            raise StopIteration
        self._next += 1
        return self._batches[self._next - 1]

    def __iter__(self):
        return self

    def state_dict(self):
        return {"next": self._next}

    def close(self):
        self._batches = []


@pytest.mark.parametrize("push", [0, 1])
def test_a_torn_update_without_a_checkpoint_ends_the_run(tmp_path, push):
    fault = Fault("table", step=3)
    with Trainer(Numbers(), TrainSettings(push=push)) as trainer:
        fault.attach(trainer)
        text = (
            r"expected a checkpoint of this fit, .* tore in step [34], got none; set checkpoint_dir"
        )
        with pytest.raises(FailedPreconditionError, match=text) as raised:
            trainer.fit(hooks=[fault.hook()])
    assert isinstance(raised.value.__cause__, AbortedError)


def test_a_checkpoint_of_an_earlier_run_is_not_restored(tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=5)
    with Trainer(Numbers(), settings) as trainer:
        trainer.fit()
    fault = Fault("table", step=3)
    with Trainer(Numbers(), settings) as trainer:
        fault.attach(trainer)
        with pytest.raises(FailedPreconditionError, match="expected a checkpoint of this fit"):
            trainer.fit(hooks=[fault.hook()])


def test_the_checkpoint_that_a_run_began_with_is_restored(tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=0)
    with Trainer(Numbers(), settings) as trainer:
        trainer.fit(hooks=[StopAfter(4)])
    fault = Fault("table", step=6)
    with Trainer(task := Numbers(), settings) as trainer:
        trainer.restore(tmp_path)
        fault.attach(trainer)
        assert trainer.fit(hooks=[fault.hook()]).num_samples == 6
        assert trainer.features.tables["id"].lookup(torch.tensor([7])).item() == -10
    assert task.labels == [4, 5, 6, 4, 5, 6, 7, 8, 9]


def test_a_checkpoint_from_before_the_first_step_is_restored(tmp_path):
    fault = Fault("table", step=2, times=2)
    with Trainer(task := Numbers(6)) as trainer:
        trainer.save(tmp_path)
        trainer.restore(tmp_path)
        fault.attach(trainer)
        assert trainer.fit(hooks=[fault.hook()]).num_recoveries == 2
    assert task.labels == [0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 4, 5]


def test_the_newest_checkpoint_of_all_hooks_and_saves_is_restored(tmp_path):
    class Save(Hook):
        def after_run(self, ctx, results):
            if ctx.run.global_step == 5:
                trainer.save(tmp_path / "own")

    settings = TrainSettings(checkpoint_dir=str(tmp_path / "first"), save_every=2)
    hooks = [CheckpointHook(tmp_path / "second", every_steps=3, keep=0), Save()]
    fault = Fault("table", step=5)
    with Trainer(task := Numbers(8), settings) as trainer:
        fault.attach(trainer)
        trainer.fit(hooks=[*hooks, fault.hook()])
    assert task.labels == [0, 1, 2, 3, 4, 5, 5, 6, 7]
    assert sorted(names(tmp_path / "second")) == ["3", "6", "8"]


@pytest.mark.parametrize("push", [0, 1])
def test_a_torn_state_is_not_saved_before_it_is_restored(tmp_path, push):
    fault = Fault("table", step=3, error=UnavailableError)
    settings = TrainSettings(
        push=push, checkpoint_dir=str(tmp_path), save_every=2, ignore_save_errors=True
    )
    with Trainer(Numbers(), settings) as trainer:
        fault.attach(trainer)
        with pytest.raises(UnavailableError, match="gone in table"):
            trainer.fit(hooks=[fault.hook()])
        text = r"\[Trainer.save\] .* did not end \(step [34]\); restore a checkpoint first"
        with pytest.raises(FailedPreconditionError, match=text):
            trainer.save(tmp_path / "other")
        with pytest.raises(FailedPreconditionError, match=r"^\[CheckpointHook\] expected a state"):
            trainer.fit()
        assert names(tmp_path) == ["2"]
        trainer.restore(tmp_path)
        trainer.save(tmp_path / "other")


def test_a_save_beside_a_torn_push_is_refused_also_where_save_errors_are_ignored(tmp_path):
    class Torn(Hook):
        def after_run(self, ctx, results):
            trainer.state.is_torn = ctx.run.global_step == 2

    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=2, ignore_save_errors=True)
    text = r"^\[CheckpointHook\] expected a state"
    with (
        Trainer(Counting(4), settings) as trainer,
        pytest.raises(FailedPreconditionError, match=text),
    ):
        trainer.fit(hooks=[Torn()])


def test_a_step_that_is_refused_tears_nothing(tmp_path):
    class Refused(Counting):
        def loss(self, model, inputs, batch):
            loss, prediction = super().loss(model, inputs, batch)
            loss.register_hook(lambda gradient: gradient * float("nan"))
            return loss, prediction

    with Trainer(Refused()) as trainer:
        with pytest.raises(ValueError, match="expected finite gradients"):
            trainer.fit()
        trainer.save(tmp_path)
    assert find(tmp_path).step == 0


@pytest.mark.parametrize("place", [*KEPT, *TORN])
def test_any_other_error_ends_the_run(tmp_path, place):
    fault = Fault(place, error=UnavailableError)
    with pytest.raises(UnavailableError, match=f"gone in {place}"):
        fit(tmp_path, fault)
    assert len(fault.sessions) == 1


@pytest.mark.parametrize(
    ("most", "times", "is_recovered"), [(3, 3, True), (3, 4, False), (0, 1, False)]
)
@pytest.mark.parametrize("place", ["forward", "table"])
def test_recoveries_in_a_row_are_bounded(tmp_path, place, most, times, is_recovered):
    fault = Fault(place, times=times)
    if is_recovered:
        assert fit(tmp_path, fault, max_recoveries=most).num_recoveries == times
    else:
        with pytest.raises(AbortedError, match=f"gone in {place}"):
            fit(tmp_path, fault, max_recoveries=most)
    assert fault.num_left == 0


def test_each_session_has_a_coordinator_of_its_own_that_is_closed(tmp_path):
    fault = Fault("forward", times=2)
    fit(tmp_path, fault, prefetch=2)
    assert len(set(map(id, fault.sessions))) == 3
    assert all(coordinator.is_closed for coordinator in fault.sessions)
    assert not any(coordinator.has_threads for coordinator in fault.sessions)


def test_a_generator_that_failed_is_not_taken_for_the_end_of_the_data():
    def source():
        yield from counted(3)
        raise AbortedError("gone")

    with Trainer(Counting()) as trainer:
        text = "expected a source that goes on after an AbortedError, got the end of a generator"
        with pytest.raises(FailedPreconditionError, match=text) as raised:
            trainer.fit(source())
    assert isinstance(raised.value.__cause__, AbortedError)


def test_an_iterator_that_goes_on_after_its_error_is_read_on():
    class Stream:
        def __init__(self):
            self.left, self.fails = counted(6), True

        def __iter__(self):
            return self

        def __next__(self):
            if len(self.left) == 3 and self.fails:
                self.fails = False
                raise AbortedError("gone")
            if not self.left:
                raise StopIteration
            return self.left.pop(0)

    with Trainer(Counting()) as trainer:
        result = trainer.fit(Stream())
    assert (result.num_recoveries, result.num_steps, result.ended) == (1, 6, "end of data")


def test_a_lookup_that_fails_in_the_second_attempt_loses_no_batch_that_was_read_ahead():
    is_ahead, lookups, errors = threading.Event(), [], [AbortedError("forward")]

    class FirstStepFails(Counting):
        def loss(self, model, inputs, batch):
            if errors:
                assert is_ahead.wait(30)
                raise errors.pop()
            return super().loss(model, inputs, batch)

    def look_up():
        lookups.append(1)
        if len(lookups) == 3:  # of the first step and the two after it
            is_ahead.set()
        if len(lookups) == 4:
            raise AbortedError("lookup")

    with Trainer(FirstStepFails(6), TrainSettings(prefetch=2)) as trainer:
        wrap(trainer.features, "read", look_up)
        result = trainer.fit()
    assert (result.num_recoveries, result.num_steps) == (2, 6)


def test_a_torn_update_needs_a_source_that_can_be_read_from_a_position(tmp_path):
    fault = Fault("table", step=3)
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=2)
    with Trainer(Counting(), settings) as trainer:
        fault.attach(trainer)
        text = "expected a source with resume, to go on after an AbortedError, got a list"
        with pytest.raises(FailedPreconditionError, match=text):
            trainer.fit(counted(6), hooks=[fault.hook()])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_last_push_is_recovered_too(tmp_path, prefetch):
    settings = TrainSettings(
        push=1, prefetch=prefetch, steps=8, checkpoint_dir=str(tmp_path), save_every=3
    )
    fault = Fault("table", step=7)
    with Trainer(Numbers(20), settings) as trainer:
        wrap(trainer.features.pending.engine, "step", lambda: calls.append(1))
        calls = []
        fault._run = trainer.run
        wrap(
            trainer.features.pending.engine,
            "step",
            None,
            lambda: len(calls) == 8 and fault.strike("table"),
        )
        result = trainer.fit()
        assert trainer.features.tables["id"].lookup(torch.tensor([7])).item() == -8
    assert (result.num_recoveries, result.num_steps, result.ended) == (1, 8, "steps")


def test_the_end_of_a_run_whose_last_hook_failed_is_saved(tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=0)
    fault = Fault("after_run", step=10)
    with Trainer(Numbers(10), settings) as trainer:
        fault.attach(trainer)
        assert trainer.fit(hooks=[fault.hook()]).num_recoveries == 1
    assert names(tmp_path) == ["10"]


def test_state_on_servers_goes_back_too(tmp_path):
    fault = Fault("table", step=5)
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=3)
    with LocalServers(2) as servers, Trainer(Numbers(10), settings, servers) as trainer:
        fault.attach(trainer)
        trainer.fit(hooks=[fault.hook()])
        assert trainer.features.tables["id"].lookup(torch.tensor([7])).item() == -10
