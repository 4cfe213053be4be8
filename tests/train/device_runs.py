"""What tests of runs on a device share; a transfer whose device is the CPU stands for a device."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import monolith
from monolith.data import Batch
from monolith.errors import AbortedError
from monolith.launch.job_commands import PROGRAM
from monolith.nn import Feature
from monolith.ops import Ragged
from monolith.ops.devices import DeviceTransfer
from monolith.table.optimizers import Adagrad
from monolith.train import Task, Trainer, TrainSettings, trainer
from tests.train.tasks import Clicks, Losses, clicks, state_of

_LAUNCH_SECONDS = 120
SETTINGS = {
    "plain": {},
    "prefetch": {"prefetch": 2},
    "push": {"push": 1},
    "prefetch_push": {"prefetch": 2, "push": 1},
    "clipped": {"clip_norm": 0.01},
    "clipped_push": {"clip_norm": 0.01, "push": 1},
    "accumulated": {"accumulate": 2},
    "accumulated_push": {"accumulate": 2, "push": 1},
    "evaluated": {"eval_every": 3},
}
every_setting = pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)


@pytest.fixture
def copies(monkeypatch):
    """Let trainers copy to and from the CPU, as they do for a device."""
    cpu = DeviceTransfer(torch.device("cpu"))
    monkeypatch.setattr(trainer, "transfer_to", lambda device: cpu)


def fresh(number, **columns):
    """Return batches without a common id."""
    return apart(clicks(number, **columns))


def apart(batches):
    """Return batches with ids of their own, whose updates no stale lookup can miss."""
    return [
        replace(
            batch,
            features={
                name: Ragged(ids.values + 100 * place, ids.row_splits)
                for name, ids in batch.features.items()
            },
        )
        for place, batch in enumerate(batches)
    ]


def outcome(options, make=Clicks, batches=None, **more):
    """Return losses, rows and parameters of a run, its evaluations and its predictions."""
    batches = fresh(12) if batches is None else batches
    losses = Losses()
    settings = TrainSettings(**options)
    with Trainer(make(batches, batches[:2]), settings, clock=lambda: 1, **more) as runner:
        result = runner.fit(hooks=[losses])
        predicted = [part.prediction for part in runner.predict(batches[:2])]
        assert {prediction.device.type for prediction in predicted} == {"cpu"}
        rows, parameters = state_of(runner)
        return {
            "losses": losses.losses,
            "rows": rows,
            "parameters": parameters,
            "evaluations": dict(result.evaluations),
            "metrics": dict(result.figures.metrics),
            "scores": runner.evaluate(),
            "predicted": [prediction.tolist() for prediction in predicted],
        }


class Mixed(Clicks):
    """A task with dropout, a buffer, and every kind of combiner."""

    features = (
        Feature("user", dim=4, optimizer=Adagrad(0.1), combiner="first", max_length=2),
        Feature("item", dim=4, optimizer=Adagrad(0.1), combiner="rows"),
    )

    def build(self):
        return torch.nn.Sequential(
            torch.nn.BatchNorm1d(13), torch.nn.Dropout(0.5), torch.nn.Linear(13, 1)
        )

    def loss(self, model, inputs, batch):
        user = (inputs.pooled["user"] * inputs.pooled.mask("user").unsqueeze(2)).flatten(1)
        matrix = torch.cat([user, inputs.pooled["item"], inputs.dense], 1)
        logit = model(matrix).squeeze(1)
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            logit, batch.label, weight=batch.weight
        )
        return losses, logit.sigmoid()


class Seen(Task):
    """A task that keeps what its loss is called with."""

    features = (Feature("user", dim=2),)
    dense, label = ("hour",), "click"

    def __init__(self, batches):
        super().__init__()
        self.batches, self.seen = batches, []

    def source(self, mode):
        return self.batches

    def build(self):
        return torch.nn.Linear(3, 1)

    def loss(self, model, inputs, batch):
        self.seen.append((inputs, batch))
        logit = model(inputs.matrix).squeeze(1)
        return (logit - batch.label).square().mean(), logit


class Unlucky(Mixed):
    """A task whose loss raises errors, one by one."""

    def __init__(self, batches, errors):
        super().__init__(batches)
        self._errors = errors

    def loss(self, model, inputs, batch):
        outputs = super().loss(model, inputs, batch)
        if self._errors:
            raise self._errors.pop()
        return outputs


def assert_recovers(**options):
    """Compare a run that recovers from an error of its first loss with one without an error."""
    settings, error = TrainSettings(**options), AbortedError("[peer] expected a connection")
    with Trainer(Unlucky(fresh(5), []), settings, clock=lambda: 1) as good:
        good.fit()
        with Trainer(Unlucky(fresh(5), [error]), settings, clock=lambda: 1) as runner:
            assert runner.fit().num_recoveries == 1
            assert state_of(runner) == state_of(good)


def timed_batch():
    """Return a batch with every kind of column."""
    (batch,) = clicks(1, weight=torch.rand(8), time=torch.full((8,), 5))
    dense = {**batch.dense, "size": torch.ones(8, 2)}
    return Batch(batch.features, dense, batch.labels, batch.weight, batch.time)


def launch(*words):
    """Run `monolith launch` to a good end, with the package that the tests have imported.

    Another one may be installed for the interpreter where the tests run on a copy of the tree.
    """
    paths = [str(Path(monolith.__file__).parents[1]), os.environ.get("PYTHONPATH")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ran = subprocess.run(
        [*PROGRAM, "launch", *words],
        timeout=_LAUNCH_SECONDS,
        capture_output=True,
        text=True,
        env=variables,
    )
    assert ran.returncode == 0, ran.stderr
