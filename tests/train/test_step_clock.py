import torch

from monolith.data import Batch
from monolith.train import Trainer
from monolith.train.run_state import StepClock
from tests.train.tasks import Clicks, clicks


def at(*times):
    return Batch(time=torch.tensor(times))


def test_the_time_of_a_step_is_the_latest_of_its_samples():
    clock = StepClock(lambda: 5000)
    clock.set([at(100, 300), at(200)])
    assert clock() == 300


def test_samples_without_a_time_have_that_of_the_clock():
    now = iter([100, 200, 300])
    clock = StepClock(lambda: next(now))
    assert clock() == 100
    clock.set(clicks(1))
    assert [clock(), clock()] == [200, 200]


def test_events_of_the_far_future_are_clamped_and_counted():
    clock = StepClock(lambda: 5000)
    clock.set([at(5000 + 3600)])
    assert (clock(), clock.num_clamped) == (8600, 0)
    clock.set([at(10**9)])
    assert (clock(), clock.num_clamped) == (8600, 1)


def test_rows_have_the_times_of_their_last_updates():
    old, new = clicks(1, time=torch.full((8,), 50)), clicks(1, seed=1, time=torch.full((8,), 60))
    with Trainer(Clicks(old + new), clock=lambda: 100) as trainer:
        trainer.fit()
        (rows,) = trainer.features.tables["item"].export()
    fresh = set(new[0].features["item"].values.tolist())
    assert dict(zip(rows.keys.tolist(), rows.times.tolist(), strict=True)) == {
        key: 60 if key in fresh else 50 for key in rows.keys.tolist()
    }
