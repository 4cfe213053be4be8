"""The click model: its data, its losses, its processes, and the parts of a step."""

import json
import time
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import click_model
from benchmarks.click_model import NUM_FEATURES, Batch, ClickSystem, ClickWorker, Sizes
from benchmarks.click_torch import ClickNet
from benchmarks.end_to_end import Comparison, check_losses
from benchmarks.harness import BenchmarkError, Rules
from benchmarks.small_bag import make
from benchmarks.step_split import StepSplit
from benchmarks.workload import Floats, Int64s
from monolith.table import Bags, Segment, Table, TableConfig

SMALL = Sizes(rows=50, batch=16, threads=1)


class CountingSystem(ClickSystem):
    """A system whose loss is the number of its rows."""

    def __init__(self, error: float = 0.0) -> None:
        self._error = error

    def versions(self) -> dict[str, str]:
        return {"counting": "1"}

    def create(self, sizes: Sizes) -> None:
        self.rows: set[int] = set()

    def insert(self, flat: Int64s) -> None:
        self.rows |= set(flat.tolist())

    def assign(self, flat: Int64s, values: Floats) -> None:
        assert self.rows >= set(flat.tolist())

    def prepare(self, batch: Batch) -> Batch:
        return batch

    def train(self, prepared: Batch) -> float:
        return len(self.rows) + self._error


def test_a_key_has_its_feature_in_the_upper_bits() -> None:
    keys = click_model.keys_of(np.arange(NUM_FEATURES * SMALL.rows), SMALL.rows)
    assert len(np.unique(keys)) == len(keys)
    assert np.array_equal(np.unique(keys >> 48), np.arange(1, NUM_FEATURES + 1))


def test_click_batches_are_the_same_in_every_process() -> None:
    first, again = (click_model.batches(SMALL, count) for count in (2, 3))
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(first, again, strict=False))
    assert all(np.array_equal(a.dense, b.dense) for a, b in zip(first, again, strict=False))
    assert first[0].ids.shape == (SMALL.batch, NUM_FEATURES)
    assert 0 < first[0].labels.mean() < 1


def test_flat_numbers_of_two_features_never_meet() -> None:
    flat = click_model.flat_of(np.array([[0] * NUM_FEATURES, [49] * NUM_FEATURES]), SMALL.rows)
    assert flat.min() == 0
    assert flat.max() == NUM_FEATURES * SMALL.rows - 1
    assert len(np.unique(flat)) == 2 * NUM_FEATURES


def test_dense_layers_start_from_the_same_weights() -> None:
    weights = [parameter.detach().numpy() for parameter in ClickNet().parameters()]
    expected = [array for tower in click_model.towers("click") for pair in tower for array in pair]
    assert all(np.array_equal(a, b) for a, b in zip(weights, expected, strict=True))
    assert weights[0].shape == (256, 429)


def test_a_click_worker_makes_rows_of_all_ids_before_it_trains() -> None:
    worker = ClickWorker(CountingSystem())
    worker.build(rows=50, batch=16, threads=1)
    assert worker.losses(2) == {"losses": [NUM_FEATURES * 50] * 2}
    worker.warm_up(sample_seconds=0.0)
    assert worker.sample()["value"] > 0


def test_a_loss_that_is_not_finite_fails_the_benchmark() -> None:
    worker = ClickWorker(CountingSystem(error=float("nan")))
    worker.build(rows=50, batch=16, threads=1)
    worker.warm_up(sample_seconds=0.0)
    with pytest.raises(BenchmarkError, match="expected a finite loss, got nan"):
        worker.sample()


@pytest.mark.parametrize("theirs", [[0.7, 0.61], [0.7, float("nan")]])
def test_a_system_that_trains_another_model_is_refused(theirs: list[float]) -> None:
    check_losses({"monolith": [0.7, 0.6], "torch": [0.7, 0.6 + 5e-6]})
    with pytest.raises(BenchmarkError, match="expected the losses of tfra within 1e-05 of ours"):
        check_losses({"monolith": [0.7, 0.6], "tfra": theirs})


def test_the_parts_of_a_step_add_up() -> None:
    table, keys = Table(TableConfig("t", Segment(4))), torch.arange(10)

    def steps(number: int) -> None:
        for _ in range(number):
            table.lookup_bags(Bags(keys, torch.tensor([0, 10])))
            torch.cat([keys, keys])

    split = StepSplit(steps, lambda number: time.sleep(0), [(table, "_lookup_bags")]).measure(4)
    parts = [split[f"{part}_ms"] for part in ("dense", "sparse", "copy", "python")]
    assert sum(parts) == pytest.approx(split["step_ms"], abs=0.003)
    assert split["calls_ms"]["lookup_bags"] > 0
    assert split["copy_ms"] > 0
    assert "_lookup_bags" not in vars(table)


def test_small_bags_of_both_systems_give_the_same_outputs() -> None:
    bags = make()
    for number in range(40):
        ours, theirs = (bags[system].step(number) for system in ("monolith", "torch"))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.dist
def test_whole_models_are_compared_in_processes(capsys: pytest.CaptureFixture[str]) -> None:
    rules = Rules(num_runs=2, sample_seconds=0.0, max_discards=0)
    systems = ("monolith", "dense", "torch", "monolith_bags", "monolith_one")
    Comparison(systems, SMALL, rules).run()
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in capsys.readouterr().out.splitlines()
    ]
    assert tuple(line["system"] for line in lines) == systems
    assert lines[0]["ratios"].keys() == {"dense", "torch", "monolith_bags", "monolith_one"}
    assert {"dense_ms", "sparse_ms", "copy_ms", "python_ms", "idle_ms"} <= lines[3].keys()
