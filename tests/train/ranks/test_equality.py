"""Ranks train what one process trains on the whole batch."""

import pytest
import torch

from monolith.train import TrainSettings
from tests.cluster.ranks.rank_threads import run_ranks
from tests.train.ranks.rank_tasks import (
    fit_alone,
    fit_rank,
    joined,
    largest_difference,
    one_batch,
    task_of,
)


def batches_of(num_ranks, num_steps=20):
    return [one_batch(seed) for seed in range(num_ranks * num_steps)]


def whole(batches, num_ranks):
    return [joined(batches[i : i + num_ranks]) for i in range(0, len(batches), num_ranks)]


@pytest.mark.req("TS-CPUSYNC-T6")
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_ranks_equal_one_process_on_the_whole_batch(num_ranks):
    batches = batches_of(num_ranks)
    _, parameters, rows = fit_alone(task_of(whole(batches, num_ranks)))
    ranks = run_ranks(num_ranks, lambda group: fit_rank(group, task_of(batches)))
    for result, found, found_rows in ranks:
        assert result.num_steps == 20
        assert largest_difference(found, parameters) < 1e-6
        assert largest_difference(found_rows, rows) < 1e-6
    for _, found, _ in ranks:
        assert all(torch.equal(found[name], ranks[0][1][name]) for name in found)


@pytest.mark.parametrize(
    "settings",
    [
        TrainSettings(clip_norm=0.1),
        TrainSettings(accumulate=2),
        TrainSettings(accumulate=2, clip_norm=0.1),
    ],
    ids=["clipped", "accumulated", "both"],
)
def test_options_of_a_step_keep_ranks_equal_to_one_process(settings):
    batches = batches_of(2, 8)
    _, parameters, rows = fit_alone(task_of(whole(batches, 2)), settings)
    for result, found, found_rows in run_ranks(
        2, lambda group: fit_rank(group, task_of(batches), settings)
    ):
        assert result.num_samples == 8 * 16
        assert largest_difference(found, parameters) < 1e-6
        assert largest_difference(found_rows, rows) < 1e-6


@pytest.mark.parametrize(
    ("num_ranks", "settings"),
    [
        (2, TrainSettings()),
        (3, TrainSettings(clip_norm=0.1)),
        (3, TrainSettings(accumulate=2)),
        (2, TrainSettings(accumulate=2, clip_norm=0.1)),
    ],
    ids=["plain", "clipped", "accumulated", "both"],
)
def test_ranks_with_other_numbers_of_samples_equal_one_process(num_ranks, settings):
    """The last step has a rank without data."""
    batches = [one_batch(seed, 2 + seed * 5 % 7) for seed in range(6 * num_ranks + 1)]
    alone, parameters, rows = fit_alone(task_of(whole(batches, num_ranks)), settings)
    for result, found, found_rows in run_ranks(
        num_ranks, lambda group: fit_rank(group, task_of(batches), settings)
    ):
        assert (result.num_steps, result.num_samples) == (alone.num_steps, alone.num_samples)
        assert result.figures.loss == pytest.approx(alone.figures.loss, abs=1e-6)
        assert largest_difference(found, parameters) < 1e-6
        assert largest_difference(found_rows, rows) < 1e-6
