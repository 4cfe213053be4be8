import math
import threading

import pytest
import torch

from monolith.errors import FailedPreconditionError, NonFiniteLossError
from monolith.observe import MemorySink
from monolith.train import Hook, Trainer, TrainSettings
from monolith.train.inputs import DeviceInputs
from monolith.train.loop import _may_queue_late
from tests.train.device_runs import (
    Mixed,
    Seen,
    assert_recovers,
    copies,  # noqa: F401
    every_setting,
    fresh,
    outcome,
    timed_batch,
)
from tests.train.tasks import Clicks, clicks, state_of

with_copies = pytest.mark.usefixtures("copies")


@every_setting
@pytest.mark.parametrize("make", [Clicks, Mixed])
def test_a_run_over_copies_computes_the_bits_of_a_run_without(request, options, make):
    batches = fresh(12, weight=torch.rand(8))
    expected = outcome(options, make, batches)
    request.getfixturevalue("copies")
    assert outcome(options, make, batches) == expected


@pytest.mark.parametrize("options", [{}, {"prefetch": 1, "push": 1}])
def test_a_run_on_servers_over_copies_computes_the_same_bits(request, options):
    expected = outcome(options)
    request.getfixturevalue("copies")
    assert outcome(options, servers=2) == expected


@with_copies
def test_the_model_gets_copies_of_all_columns_and_the_ids_themselves():
    batch = timed_batch()
    with Trainer(task := Seen([batch])) as trainer:
        trainer.fit()
    ((inputs, copy),) = task.seen
    assert isinstance(inputs, DeviceInputs)
    assert copy.features is batch.features
    pairs = [(copy.weight, batch.weight), (copy.time, batch.time), (copy.label, batch.label)]
    pairs += [(copy.dense[name], batch.dense[name]) for name in ("hour", "size")]
    for one, other in pairs:
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()
    assert torch.equal(inputs.dense, batch.dense["hour"].unsqueeze(1))


@with_copies
def test_hooks_get_the_batch_in_main_memory():
    class Batches(Hook):
        def after_run(self, ctx, results):
            seen.extend(part.batch for part in results.value.parts)

    seen, batches = [], clicks(3)
    with Trainer(Clicks(batches)) as trainer:
        trainer.fit(hooks=[Batches()])
    assert all(one is other for one, other in zip(seen, batches, strict=True))


def with_bad(number=3):
    """Return batches, the last of which has an hour that is not a number."""
    batches = fresh(number)
    batches[-1].dense["hour"][0] = math.nan
    return batches


@with_copies
@pytest.mark.parametrize("options", [{}, {"push": 1}, {"push": 1, "clip_norm": 1.0}])
def test_a_loss_that_is_not_finite_stops_before_anything_is_stepped(tmp_path, options):
    settings = TrainSettings(**options, keep_dir=str(tmp_path))
    with Trainer(Clicks(batches := with_bad()), settings, clock=lambda: 1) as trainer:
        with pytest.raises(NonFiniteLossError) as error:
            trainer.fit()
        trainer.save(tmp_path / "saved")  # the state is whole
        with Trainer(Clicks(batches[:2]), clock=lambda: 1) as good:
            good.fit()
            assert state_of(trainer) == state_of(good)
    assert error.value.batch is batches[2]
    assert (tmp_path / "non_finite_loss_2.parquet").exists()


class BadGradient(Clicks):
    """A task whose rows get a gradient that is not finite, in the third step."""

    def loss(self, model, inputs, batch):
        loss, prediction = super().loss(model, inputs, batch)
        self.count = getattr(self, "count", 0) + 1
        if self.count == 3:
            loss = loss + (inputs.pooled.joined * 0).sum().sqrt()  # 0, with an infinite slope
        return loss, prediction


@with_copies
def test_a_refused_gradient_without_push_leaves_the_state_whole():
    with Trainer(BadGradient(fresh(4)), clock=lambda: 1) as trainer:
        with pytest.raises(ValueError, match="expected finite gradients"):
            trainer.fit()
        trainer.state.check_whole("here")


@with_copies
def test_a_refused_gradient_with_push_tears_the_state(tmp_path):
    with Trainer(BadGradient(fresh(4)), TrainSettings(push=1), clock=lambda: 1) as trainer:
        with pytest.raises(ValueError, match="expected finite gradients"):
            trainer.fit()
        with pytest.raises(FailedPreconditionError, match="expected a state of whole steps"):
            trainer.save(tmp_path)


class ChangesGradients(Clicks):
    def change_gradients(self, optimizer, step):
        pass


@with_copies
@pytest.mark.parametrize(
    ("options", "make", "is_late"),
    [
        ({"push": 1}, Clicks, True),
        ({}, Clicks, False),
        ({"push": 1, "clip_norm": 1.0}, Clicks, False),
        ({"push": 1}, ChangesGradients, False),
    ],
)
def test_gradients_are_queued_on_the_thread_of_updates_unless_their_norm_is_needed(
    monkeypatch, options, make, is_late
):
    threads, queue_gradients = set(), DeviceInputs.queue_gradients

    def noted(inputs):
        threads.add(threading.current_thread() is threading.main_thread())
        queue_gradients(inputs)

    monkeypatch.setattr(DeviceInputs, "queue_gradients", noted)
    with Trainer(make(), TrainSettings(**options)) as trainer:
        assert _may_queue_late(trainer.trainee) is is_late
        trainer.fit()
    assert threads == {not is_late}


@with_copies
@pytest.mark.parametrize("push", [0, 1])
def test_a_recovery_trains_the_batch_once_more(push):
    assert_recovers(push=push)


@with_copies
def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits(tmp_path):
    batches = fresh(6)
    with Trainer(Mixed(batches), clock=lambda: 1) as whole:
        whole.fit()
        with Trainer(Mixed(batches[:3]), clock=lambda: 1) as first:
            first.fit()
            first.save(tmp_path)
        with Trainer(Mixed(batches[3:]), clock=lambda: 1) as second:
            second.restore(tmp_path)
            second.fit()
            assert state_of(second) == state_of(whole)


def stage_seconds(settings):
    sink = MemorySink()
    with Trainer(Clicks(), settings, metrics=sink) as trainer:
        trainer.fit()
    return {name: sink.value(f"step/{name}_seconds", {}) for name in ("send", "copy", "wait")}


@with_copies
def test_copies_have_stages_of_their_own():
    assert min(stage_seconds(TrainSettings()).values()) > 0


def test_a_run_on_the_cpu_spends_no_time_in_copies():
    seconds = stage_seconds(TrainSettings())
    assert seconds["send"] == seconds["copy"] == 0


@pytest.mark.parametrize("with_transfer", [False, True])
def test_the_loss_of_a_model_in_bf16_is_float32(request, with_transfer):
    class Half(Clicks):
        def loss(self, model, inputs, batch):
            logit = model(inputs.matrix).squeeze(1)
            dtypes.append(logit.dtype)
            return (logit - batch.label.bfloat16()).square().mean(), logit

    if with_transfer:
        request.getfixturevalue("copies")
    dtypes = []
    with Trainer(Half(), TrainSettings(precision="bf16")) as trainer:
        batch = trainer.columns.bind(clicks(1)[0])
        inputs = trainer.trainee.send(trainer.trainee.look_up(batch, is_training=True), batch)
        loss, _ = trainer.trainee.forward(inputs, batch, is_training=True)
    assert dtypes == [torch.bfloat16]
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("device", ["tpu", "xla", "meta", "cuda:x", "cuda:", "", 1, None])
def test_names_that_are_no_device_are_refused(device):
    with pytest.raises(ValueError, match=r"^\[TrainSettings\] expected device cpu, cuda or cuda:N"):
        TrainSettings(device=device)


@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_missing_device_is_an_error_before_anything_is_made(monkeypatch, device):
    class Unbuilt(Clicks):
        def build(self):
            raise AssertionError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"expected one of 0 CUDA devices .*, got '{device}'"):
        Trainer(Unbuilt(), TrainSettings(device=device))


class Summing(torch.optim.SGD):
    """Descent in proportion to the inverse root of a sum that begins at its making."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.05)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["sum"] = torch.full_like(parameter, 0.1)

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["sum"] += parameter.grad**2
            parameter.grad /= self.state[parameter]["sum"].sqrt()
        return super().step(closure)


def test_an_optimizer_that_begins_with_a_state_keeps_it_on_servers():
    class Begun(Clicks):
        def optimizer(self, model):
            return Summing(model.parameters())

    assert outcome({}, Begun, servers=2) == outcome({}, Begun)
