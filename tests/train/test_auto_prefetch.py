import logging
from types import SimpleNamespace

import pytest

from monolith.train import Trainer, TrainSettings
from monolith.train.read_ahead import AutoPrefetch
from tests.train.tasks import Counting


class Reader:
    """A reader that records its capacities."""

    def __init__(self):
        self.capacity, self.capacities = 0, []

    def set_capacity(self, capacity):
        self.capacity = capacity
        self.capacities.append(capacity)


def choose(milliseconds_ahead, num_steps=40):
    """Return the capacities set where a step takes 10 ms, or `milliseconds_ahead` with prefetch."""
    reader, now = Reader(), [0.0]
    hook = AutoPrefetch(reader, lambda: now[0])
    for _ in range(num_steps):
        now[0] += (milliseconds_ahead if reader.capacity else 10) / 1000
        hook.after_run(SimpleNamespace(), SimpleNamespace())
    return reader.capacities


@pytest.mark.parametrize(("milliseconds", "capacities"), [(8, [1, 1]), (9.9, [1, 0]), (12, [1, 0])])
def test_prefetch_stays_where_it_pays(milliseconds, capacities):
    assert choose(milliseconds) == capacities


def test_the_choice_is_logged(caplog):
    caplog.set_level(logging.INFO)
    choose(12)
    assert caplog.messages == [
        "prefetch auto: 0, for a step takes 10.000 ms without and 12.000 ms with it"
    ]


def test_a_run_returns_the_choice_and_trains_every_batch_once():
    task = Counting(60)
    with Trainer(task, TrainSettings(prefetch="auto")) as trainer:
        result = trainer.fit()
    assert result.prefetch in (0, 1)
    assert (len(task.seen), result.figures.staleness_bound) == (60, 1)
    assert max(step - seen for step, seen in enumerate(task.seen)) <= 1
