"""Models that predict one stream, each with rows of another age, beside the same learner.

A learner trains on the samples as they arrive. What predicts is the learner itself, a copy that
is refreshed from the learner at intervals, or a learner that trains on whole periods at their end.
All of them start from one state, and predict each sample before any learner has trained on it.
"""

import copy
import dataclasses
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.quality.samples import Floats, Ids, Samples, exact_auc, join, log_loss, timed_stream
from examples.clicks import BATCH, STEPS_PER_DAY
from examples.clicks_task import START_SECONDS, Ranker
from monolith.nn import Features
from monolith.optim import Optimizer
from monolith.table import Table, TableConfig
from monolith.table.base import BaseTable

SECOND, MINUTE, HOUR, DAY = 1, 60, 3600, 86_400
ONLINE, NEVER, BEST = "online, every batch", "never", "best reachable"
REFRESHED: Mapping[str, float] = {
    "every second": SECOND,
    "every 10 s": 10 * SECOND,
    "every minute": MINUTE,
    "every 10 min": 10 * MINUTE,
    "every hour": HOUR,
    "every 5 h": 5 * HOUR,
    "every day": DAY,
    NEVER: math.inf,
}
BATCH_TRAINED: Mapping[str, float] = {"batch training, hourly": HOUR, "batch training, daily": DAY}
ARMS = (ONLINE, *REFRESHED, *BATCH_TRAINED)


class Predictor:
    """Features and layers of the demo's task, which predict clicks."""

    def __init__(self, features: Features, layers: torch.nn.Module) -> None:
        self.features, self.layers = features, layers

    def score(self, ids: Ids) -> Floats:
        """Return the logits of samples as a server predicts them: new ids read as zeros."""
        with torch.no_grad():
            logits: torch.Tensor = self.layers(self.features.read(ids, is_training=False).joined)
        scores: Floats = logits.double().numpy()
        return scores


class Learner(Predictor):
    """The demo's model with its optimizers, trained a batch at a time.

    Args:
        seed: Seed of the layers.
        batch: Number of samples of a batch.
    """

    def __init__(self, seed: int, batch: int) -> None:
        self.seed, self.batch, self.time = seed, batch, START_SECONDS
        torch.manual_seed(seed)
        task = Ranker()
        features = Features(task.features, make_table=self._make_table)
        super().__init__(features, task.build())
        dense = task.optimizer(self.layers)
        self.optimizer = Optimizer([self.features, self.layers], dense)

    def _make_table(self, config: TableConfig) -> Table:
        return Table(config, clock=lambda: self.time)

    def learn(self, samples: Samples) -> None:
        """Train on one batch."""
        self.time = START_SECONDS + int(samples.times[-1])
        logits = self.layers(self.features(samples.ids).joined)
        # Divided by the size of the demo's batches, to which the rate of the rows belongs: a row
        # steps by the clicks of its id, whatever else is in the batch.
        loss = binary_cross_entropy_with_logits(logits, samples.labels, reduction="sum") / BATCH
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def evict(self, seconds: float) -> None:
        """Remove the rows that have expired at a time of the stream."""
        for table in self.features.tables.values():
            table.evict(START_SECONDS + int(seconds))

    def twin(self) -> "Learner":
        """Return a learner of its own with the same state."""
        twin = Learner(self.seed, self.batch)
        twin.features.load_state_dict(self.features.state_dict())
        twin.layers.load_state_dict(self.layers.state_dict())
        # A copy, because an optimizer of torch may keep the tensors of the state that it loads.
        twin.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return twin


class ServingCopy(Predictor):
    """Weights of a learner in serving tables, refreshed by what changed in the meantime.

    Args:
        name: Name of the cursors by which the learner's tables remember what the copy has.
        learner: Source of the weights.
    """

    def __init__(self, name: str, learner: Learner) -> None:
        self.name, self.learner = name, learner
        task = Ranker()
        super().__init__(Features(task.features, make_table=_serving_table), task.build())

    def refresh(self) -> int:
        """Take over the changed rows, the removed keys and the layers; return the rows' number."""
        tables = self.learner.features.tables
        num_rows = sum(self._refresh(name, table) for name, table in tables.items())
        self.layers.load_state_dict(self.learner.layers.state_dict())
        return num_rows

    def _refresh(self, name: str, table: BaseTable) -> int:
        serving = self.features.tables[name]
        with table.cut(cursor=self.name) as snapshot:
            changes = snapshot.changes()
            if not changes.full:
                serving.erase(changes.tombstones)
                serving.import_rows(snapshot.lookup_entry(changes.keys).rows.weights_only())
                return len(changes.keys)
            serving.clear()
            for rows in snapshot.export():
                serving.import_rows(rows.weights_only())
            return len(snapshot)

    def unfollow(self) -> None:
        """Remove the cursors: the copy is not refreshed again."""
        for table in self.learner.features.tables.values():
            table.drop_cursor(self.name)


def _serving_table(config: TableConfig) -> Table:
    return Table(dataclasses.replace(config, kind="serving"))


class Arm(ABC):
    """What predicts the stream, refreshed at the multiples of an interval.

    Args:
        predictor: What predicts.
        start: Seconds of the stream at which the arm starts.
        interval: Seconds between two refreshes; infinite for none.
    """

    def __init__(self, predictor: Predictor, start: float, interval: float) -> None:
        self.predictor, self.interval = predictor, interval
        self.due = start + interval
        self.num_refreshes = self.num_rows = 0
        self._place = 0  # of the first sample of the step that is not predicted
        self._parts: list[Floats] = []

    def before_batch(self, step: Samples, start: int, stop: int) -> None:
        """Refresh if that is due before the last sample of a batch that no learner has seen.

        Args:
            step: Samples of the stream's step.
            start: Place of the batch's first sample.
            stop: Place after the batch's last sample.
        """
        last = float(step.times[stop - 1])
        if self.due <= last:
            place = int(np.searchsorted(step.times, self.due))
            self._predict(step, place)
            self.refresh(step, place)
            self.num_refreshes += 1
            # The learner stands still up to the end of the batch, so one refresh is enough.
            self.due = (math.floor(last / self.interval) + 1) * self.interval

    def end_step(self, step: Samples) -> None:
        """Predict the rest of the step."""
        self._predict(step, len(step))
        self._place = 0

    @abstractmethod
    def refresh(self, step: Samples, place: int) -> None:
        """Bring the predictor up to date before the sample at `place` of the step."""

    def logits(self) -> Floats:
        """Return the logits of all samples so far."""
        return np.concatenate(self._parts)

    def _predict(self, step: Samples, stop: int) -> None:
        if stop > self._place:
            self._parts.append(self.predictor.score(step.part(self._place, stop).ids))
            self._place = stop


class Online(Arm):
    """The learner itself, which predicts each batch before it trains on the batch."""

    def __init__(self, learner: Learner, start: float) -> None:
        super().__init__(learner, start, 0.0)

    def before_batch(self, step: Samples, start: int, stop: int) -> None:
        self._predict(step, stop)
        self.num_refreshes += 1

    def refresh(self, step: Samples, place: int) -> None:
        """The learner is up to date."""


class Refreshed(Arm):
    """A copy that is refreshed from the learner."""

    def __init__(self, name: str, learner: Learner, start: float, interval: float) -> None:
        self.copy = ServingCopy(name, learner)
        super().__init__(self.copy, start, interval)
        self.copy.refresh()
        if math.isinf(interval):
            self.copy.unfollow()

    def refresh(self, step: Samples, place: int) -> None:
        self.num_rows += self.copy.refresh()


class BatchTrained(Arm):
    """A learner that trains at the end of each period on its samples, in random order, once."""

    def __init__(self, learner: Learner, start: float, interval: float) -> None:
        super().__init__(learner, start, interval)
        self.learner = learner
        self._random = torch.Generator().manual_seed(learner.seed)
        self._untrained: list[Samples] = []  # of earlier steps
        self._first = 0  # place in the step of the first sample that is not trained

    def refresh(self, step: Samples, place: int) -> None:
        parts = [*self._untrained, *([step.part(self._first, place)] if place else [])]
        period = join(parts)
        order = torch.randperm(len(period), generator=self._random)
        for places in torch.split(order, self.learner.batch):
            self.learner.learn(period.take(places.sort().values))
        if self.due % DAY == 0:
            self.learner.evict(self.due)
        self._untrained, self._first = [], place

    def end_step(self, step: Samples) -> None:
        super().end_step(step)
        self._untrained.append(step.part(self._first, len(step)))
        self._first = 0


@dataclass(frozen=True)
class World:
    """One run of the study.

    Attributes:
        drift: Speed of the demo's stream.
        seed: Seed of stream and layers.
        warm_days: Days that the learner has learned before the arms start.
        days: Days that the arms predict.
        batch: Number of samples of a batch of a learner.
    """

    drift: float
    seed: int
    warm_days: int
    days: int
    batch: int


@dataclass(frozen=True)
class Outcome:
    """How well one arm predicted one world.

    Attributes:
        arm: Name of the arm.
        auc: AUC of all samples.
        log_loss: Mean log loss of all samples.
        auc_by_day: AUC of each day.
        num_refreshes: Number of refreshes, of batch trainings, or of batches of the learner.
        rows_per_refresh: Mean number of rows that a refresh has copied.
    """

    arm: str
    auc: float
    log_loss: float
    auc_by_day: list[float]
    num_refreshes: int = 0
    rows_per_refresh: float = 0.0


def run_world(world: World) -> list[Outcome]:
    """Return the outcome of each arm, and of the true chances, on one stream."""
    torch.set_num_threads(1)  # a model as small as this one is fastest so
    learner = Learner(world.seed, world.batch)
    stream = timed_stream(world.seed, world.drift)
    for number, step in enumerate(itertools.islice(stream, world.warm_days * STEPS_PER_DAY), 1):
        _learn_step(learner, step, {}, number)
    arms = start_arms(learner, world.warm_days * DAY)
    labels, chances = [], []
    for number, step in enumerate(itertools.islice(stream, world.days * STEPS_PER_DAY), 1):
        _learn_step(learner, step, arms, number + world.warm_days * STEPS_PER_DAY)
        labels.append(step.labels.double().numpy())
        chances.append(step.chances.double().numpy())
    clicks, best = np.concatenate(labels), np.concatenate(chances)
    outcomes = [_outcome(name, arm.logits(), clicks, arm) for name, arm in arms.items()]
    return [*outcomes, _outcome(BEST, np.log(best / (1 - best)), clicks)]


def start_arms(learner: Learner, start: float) -> dict[str, Arm]:
    """Return all arms, each in the state of the learner."""
    arms: dict[str, Arm] = {ONLINE: Online(learner, start)}
    for name, interval in REFRESHED.items():
        arms[name] = Refreshed(name, learner, start, interval)
    for name, interval in BATCH_TRAINED.items():
        arms[name] = BatchTrained(learner.twin(), start, interval)
    return arms


def _learn_step(learner: Learner, step: Samples, arms: Mapping[str, Arm], number: int) -> None:
    """Predict and learn the batches of a step; remove expired rows at the end of a day."""
    for start in range(0, len(step), learner.batch):
        stop = min(start + learner.batch, len(step))
        for arm in arms.values():
            arm.before_batch(step, start, stop)
        learner.learn(step.part(start, stop))
    for arm in arms.values():
        arm.end_step(step)
    if number % STEPS_PER_DAY == 0:
        learner.evict(number // STEPS_PER_DAY * DAY)


def _outcome(name: str, logits: Floats, labels: Floats, arm: Arm | None = None) -> Outcome:
    size = STEPS_PER_DAY * BATCH
    days = range(0, len(labels), size)
    by_day = [exact_auc(logits[day : day + size], labels[day : day + size]) for day in days]
    counts = (0, 0.0)
    if arm is not None and arm.num_refreshes:
        counts = arm.num_refreshes, arm.num_rows / arm.num_refreshes
    return Outcome(name, exact_auc(logits, labels), log_loss(logits, labels), by_day, *counts)


def gaps(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the AUC of each arm less the AUC of the online arm."""
    online = next(outcome.auc for outcome in outcomes if outcome.arm == ONLINE)
    return {outcome.arm: outcome.auc - online for outcome in outcomes}
