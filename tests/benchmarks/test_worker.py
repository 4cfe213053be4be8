"""A worker measures a right table, and refuses one that answers wrongly or loses rows."""

import numpy as np
import pytest

from benchmarks import workload
from benchmarks.harness import BenchmarkError
from benchmarks.worker import System, Worker
from benchmarks.workload import Floats, Int64s, Workload

pytestmark = pytest.mark.thorough


class DictTable(System):
    """A table of plain Python, right or (by `error`) wrong."""

    name = "dict"

    def __init__(self, error: float = 0.0) -> None:
        self._error = error

    def versions(self) -> dict[str, str]:
        return {"dict": "1"}

    def create(self, workload: Workload, *, with_state: bool, presized: bool) -> None:
        self._rows: dict[int, Floats] = {}
        self._state: dict[int, Floats] = {}
        self._dim = workload.dim

    def batch(self, indices: Int64s) -> list[int]:
        return [int(key) for key in workload.keys_of(indices)]

    def tensor(self, array: Floats) -> Floats:
        return array

    def assign(self, batch: list[int], values: Floats) -> None:
        for key, row in zip(batch, values, strict=True):
            self._rows[key] = row.copy()
            self._state[key] = np.full(self._dim, workload.INITIAL_ACCUMULATOR, np.float32)

    def lookup(self, batch: list[int]) -> Floats:
        rows: Floats = np.stack([self._rows[key] for key in batch]) + np.float32(self._error)
        return rows

    def update(self, batch: list[int], gradient: Floats) -> None:
        summed: dict[int, Floats] = {}
        for key, row in zip(batch, gradient, strict=True):
            summed[key] = summed[key] + row if key in summed else row
        for key, row in summed.items():
            self._state[key] += row * row
            self._rows[key] -= workload.LEARNING_RATE * row / np.sqrt(self._state[key])

    def insert(self, batch: list[int]) -> None:
        self.assign(batch, np.zeros((len(batch), self._dim), np.float32))

    def num_rows(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        self._rows.clear()


def built(stage: str, error: float = 0.0) -> Worker:
    worker = Worker(DictTable(error))
    worker.build(rows=300, dim=4, batch=100, threads=1, stage=stage)
    return worker


@pytest.mark.parametrize("stage", ["lookup", "update"])
def test_a_right_table_is_measured(stage: str) -> None:
    worker = built(stage)
    worker.warm_up("zipf", sample_seconds=0.0)
    assert worker.sample("zipf")["value"] > 0


@pytest.mark.parametrize("stage", ["lookup", "update"])
def test_a_wrong_answer_fails_the_benchmark(stage: str) -> None:
    with pytest.raises(BenchmarkError, match=rf"\[{stage}\] expected the known answer"):
        built(stage, error=0.01).warm_up("uniform", sample_seconds=0.0)


def test_insert_times_every_full_batch_after_the_first_thousand_keys() -> None:
    reply = Worker(DictTable()).insert(rows=1_250, dim=2, batch=100, threads=1, peak_bytes=0)
    assert len(reply["batch_seconds"]) == 2
    assert reply["value"] > 0


def test_lost_rows_fail_the_insert_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DictTable, "num_rows", lambda self: 7)
    with pytest.raises(BenchmarkError, match="expected 1100 rows, got 7"):
        Worker(DictTable()).insert(rows=1_100, dim=2, batch=100, threads=1, peak_bytes=0)


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_memory_is_read_at_every_size(is_trimmed: bool) -> None:
    worker, sizes = Worker(DictTable()), [1_000, 200_000]
    reply = worker.grow(sizes, dim=16, batch=20_000, with_state=True, is_trimmed=is_trimmed)
    assert len(reply["taken_bytes"]) == 2
    # Some of it may be memory that was free before.
    assert reply["taken_bytes"][1] > 200_000 * 16 * 2
