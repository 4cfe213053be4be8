"""Runs whose model, loss and dense optimizer are on a CUDA device, with tables in main memory."""

import math

import pytest
import torch

from monolith.cluster import LocalServers
from monolith.errors import NonFiniteLossError
from monolith.train import Hook, Trainer, TrainSettings
from tests.train.device_runs import Mixed, assert_recovers, every_setting, fresh, outcome
from tests.train.tasks import Clicks, state_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
]
CUDA = {"device": "cuda"}


class Wide(Clicks):
    """A task with a deep model, without dropout, whose numbers two devices compute alike."""

    def build(self):
        return torch.nn.Sequential(
            torch.nn.Linear(9, 64),
            torch.nn.ReLU(),
            torch.nn.BatchNorm1d(64),
            torch.nn.Linear(64, 1),
        )

    def optimizer(self, model):
        return torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.1)


def numbers_of(value):
    """Yield all numbers of nested lists, tuples and dictionaries."""
    if isinstance(value, dict):
        for name in sorted(value):
            yield from numbers_of(value[name])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from numbers_of(item)
    else:
        yield value


def assert_close(found, expected, tolerance=1e-3):
    pairs = zip(numbers_of(found), numbers_of(expected), strict=True)
    far = [(a, b) for a, b in pairs if not math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)]
    assert far == []


@every_setting
def test_a_run_on_the_device_agrees_with_a_run_on_the_cpu(options):
    batches = fresh(12, weight=torch.rand(8))
    expected = outcome(options, Wide, batches)
    assert_close(outcome({**options, **CUDA}, Wide, batches), expected)


def test_rows_apart_and_masks_agree():
    class NoDropout(Mixed):
        def build(self):
            return torch.nn.Linear(13, 1)

    batches = fresh(6, weight=torch.rand(8))
    assert_close(outcome(CUDA, NoDropout, batches), outcome({}, NoDropout, batches))


def test_bf16_agrees_within_its_precision():
    found, expected = (outcome({"precision": "bf16", **more}, Wide) for more in (CUDA, {}))
    assert_close(found["losses"], expected["losses"], 0.03)


@pytest.mark.parametrize("push", [0, 1])
def test_servers_in_this_process_agree(push):
    expected = outcome({"push": push}, Wide)
    found = outcome({"push": push, **CUDA}, Wide, servers=2)
    assert_close(found, expected)


def test_parameters_of_servers_follow_the_device_of_the_trainer():
    batches = fresh(6)
    with LocalServers(2) as servers:
        for settings in (TrainSettings(), TrainSettings(**CUDA), TrainSettings()):
            with Trainer(Wide(batches[:2]), settings, servers, clock=lambda: 1) as trainer:
                trainer.fit()
                found = state_of(trainer)[1]
    with Trainer(Wide(batches[:2] * 3), clock=lambda: 1) as trainer:
        trainer.fit()
        assert_close(found, {name: p.tolist() for name, p in trainer.model.named_parameters()})


@pytest.mark.parametrize("first", ["cpu", "cuda"])
@pytest.mark.parametrize("second", ["cpu", "cuda"])
def test_a_checkpoint_goes_on_on_another_device(tmp_path, first, second):
    batches = fresh(6)
    with Trainer(Wide(batches), clock=lambda: 1) as whole:
        whole.fit()
        expected = state_of(whole)
    settings = TrainSettings(device=first, checkpoint_dir=str(tmp_path))
    with Trainer(Wide(batches[:3]), settings, clock=lambda: 1) as trainer:
        trainer.fit()
    with Trainer(Wide(batches[3:]), TrainSettings(device=second), clock=lambda: 1) as trainer:
        trainer.restore(tmp_path)
        trainer.fit()
        assert_close(state_of(trainer), expected)


def test_a_resumed_run_with_dropout_computes_the_same_bits(tmp_path):
    batches = fresh(6)
    with Trainer(Mixed(batches), TrainSettings(**CUDA), clock=lambda: 1) as whole:
        whole.fit()
        expected = state_of(whole)
    with Trainer(Mixed(batches[:3]), TrainSettings(**CUDA), clock=lambda: 1) as trainer:
        trainer.fit()
        trainer.save(tmp_path)
    torch.cuda.manual_seed(99)
    with Trainer(Mixed(batches[3:]), TrainSettings(**CUDA), clock=lambda: 1) as trainer:
        trainer.restore(tmp_path)
        trainer.fit()
        assert state_of(trainer) == expected


def test_saves_while_training_goes_on_are_of_their_step(tmp_path):
    settings = TrainSettings(
        **CUDA, push=1, save_every=2, checkpoint_dir=str(tmp_path), keep=0, busy_save="wait"
    )
    with Trainer(Wide(fresh(6)), settings, clock=lambda: 1) as trainer:
        trainer.fit()
    for step in (2, 4, 6):
        with Trainer(Wide(fresh(step)), TrainSettings(**CUDA), clock=lambda: 1) as expected:
            expected.fit()
            with Trainer(Wide(()), TrainSettings(**CUDA)) as saved:
                saved.restore(tmp_path / f"model.ckpt-{step}")
                assert state_of(saved) == state_of(expected)


@pytest.mark.parametrize("push", [0, 1])
def test_a_recovery_draws_the_same_dropout(push):
    assert_recovers(push=push, **CUDA)


@pytest.mark.parametrize("push", [0, 1])
def test_a_loss_that_is_not_finite_stops_before_anything_is_stepped(tmp_path, push):
    batches = fresh(3)
    batches[-1].dense["hour"][0] = math.nan
    settings = TrainSettings(push=push, keep_dir=str(tmp_path), **CUDA)
    with Trainer(Clicks(batches), settings, clock=lambda: 1) as trainer:
        with pytest.raises(NonFiniteLossError) as error:
            trainer.fit()
        with Trainer(Clicks(batches[:2]), TrainSettings(**CUDA), clock=lambda: 1) as good:
            good.fit()
            assert state_of(trainer) == state_of(good)
    assert error.value.batch is batches[2]
    assert (tmp_path / "non_finite_loss_2.parquet").exists()


@pytest.mark.filterwarnings("default")  # of the compiler
def test_a_compiled_model_agrees():
    class Compiled(Wide):
        def build(self):
            return torch.compile(super().build())

    found, expected = outcome(CUDA, Compiled), outcome({}, Wide)
    for name in ("losses", "rows", "scores", "predicted"):
        assert_close(found[name], expected[name])


@pytest.mark.filterwarnings("default")  # of the mode that refuses synchronisation
@pytest.mark.parametrize("push", [0, 1])
def test_no_step_synchronises_but_by_events(push):
    class Strict(Hook):
        def after_run(self, ctx, results):
            if ctx.run.global_step == 3:
                torch.cuda.set_sync_debug_mode("error")

    settings = TrainSettings(push=push, prefetch=1, log_every=0, max_recoveries=0, **CUDA)
    with Trainer(Wide(fresh(12)), settings) as trainer:
        try:
            assert trainer.fit(hooks=[Strict()]).num_steps == 12
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_device_number_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"expected one of . CUDA devices .*, got 'cuda:99'"):
        Trainer(Clicks(), TrainSettings(device="cuda:99"))


def test_a_device_with_a_number_trains():
    with Trainer(Wide(fresh(2)), TrainSettings(device="cuda:0")) as trainer:
        assert trainer.fit().num_steps == 2
        assert next(trainer.model.parameters()).device == torch.device("cuda", 0)
