import logging
from types import SimpleNamespace

import pytest

from monolith.train import Trainer, TrainSettings
from monolith.train.read_ahead import AutoPrefetch
from tests.train.tasks import Counting


class Reader:
    """Notes its capacities."""

    def __init__(self):
        self.capacity, self.told = 0, []

    def set_capacity(self, capacity):
        self.capacity = capacity
        self.told.append(capacity)


def chosen(milliseconds_ahead, num_steps=40):
    """What is chosen where a step takes 10 ms, or so many with prefetch."""
    reader, now = Reader(), [0.0]
    hook = AutoPrefetch(reader, lambda: now[0])
    for _ in range(num_steps):
        now[0] += (milliseconds_ahead if reader.capacity else 10) / 1000
        hook.after_run(SimpleNamespace(), SimpleNamespace())
    return reader.told


@pytest.mark.parametrize(("milliseconds", "told"), [(8, [1, 1]), (9.9, [1, 0]), (12, [1, 0])])
def test_prefetch_stays_where_it_pays(milliseconds, told):
    assert chosen(milliseconds) == told


def test_the_choice_is_told(caplog):
    caplog.set_level(logging.INFO)
    chosen(12)
    assert caplog.messages == [
        "prefetch auto: 0, for a step takes 10.000 ms without and 12.000 ms with it"
    ]


def test_a_run_tells_what_was_chosen_and_trains_every_batch_once():
    task = Counting(60)
    with Trainer(task, TrainSettings(prefetch="auto")) as trainer:
        result = trainer.fit()
    assert result.prefetch in (0, 1)
    assert (len(task.seen), result.figures.staleness_bound) == (60, 1)
    assert max(step - seen for step, seen in enumerate(task.seen)) <= 1
