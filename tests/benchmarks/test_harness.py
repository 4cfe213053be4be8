"""The benchmarks measure what they say: keys, turns, answers, JSON lines, targets."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks import targets, workload
from benchmarks.harness import (
    Measurement,
    Rules,
    Sample,
    Series,
    emit,
    interleave,
    ratios,
    timed,
)
from benchmarks.insert import batch_seconds
from benchmarks.scaling import waits_summary
from benchmarks.stage import Options, matrix, table_bytes
from benchmarks.workload import Workload

FAST = Rules(num_runs=3, sample_seconds=0.0, max_discards=0)


def test_zipf_keys_come_with_their_exact_probabilities() -> None:
    sizes = Workload(rows=1_000, dim=1, batch=100_000)
    indices = np.concatenate(workload.index_batches(sizes, "zipf", count=4))
    counts = np.bincount(indices, minlength=sizes.rows)
    weights = 1 / np.arange(1, sizes.rows + 1) ** workload.ZIPF_EXPONENT
    expected = np.empty(sizes.rows)
    ranks = np.arange(sizes.rows)
    expected[workload.scatter(ranks, sizes.rows)] = weights / weights.sum() * len(indices)
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_squared - (sizes.rows - 1)) < 5 * np.sqrt(2 * (sizes.rows - 1))


def test_uniform_keys_reach_every_row_alike() -> None:
    sizes = Workload(rows=100, dim=1, batch=100_000)
    counts = np.bincount(workload.index_batches(sizes, "uniform", count=1)[0], minlength=100)
    assert abs(counts - 1_000).max() < 5 * np.sqrt(1_000)


@pytest.mark.parametrize("rows", [1, 2, 999, 65_536, 200_000])
def test_ranks_are_scattered_one_to_one(rows: int) -> None:
    indices = workload.scatter(np.arange(rows), rows)
    assert np.array_equal(np.sort(indices), np.arange(rows))


def test_keys_are_distinct_and_lie_all_over_int64() -> None:
    keys = workload.keys_of(np.arange(100_000))
    assert keys.dtype == np.int64
    assert len(np.unique(keys)) == len(keys)
    assert 0.49 < (keys < 0).mean() < 0.51
    assert np.abs(np.histogram(keys >> 56, bins=256)[0] - 390).max() < 120


def test_batches_are_the_same_in_every_process() -> None:
    sizes = Workload(rows=1_000, dim=1, batch=8)
    first, again = (workload.index_batches(sizes, "zipf", count=2) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first[0], first[1])


def test_contenders_take_turns() -> None:
    order: list[str] = []

    def contender(name: str) -> Callable[[], Sample]:
        def take() -> Sample:
            order.append(name)
            return Sample(1.0)

        return take

    interleave({name: contender(name) for name in "AB"}, FAST)
    assert "".join(order) == "ABABAB"


def test_a_disturbed_sample_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.harness.time.sleep", lambda seconds: None)
    samples = iter([Sample(1.0, 0.9), Sample(2.0, 0.1), Sample(3.0, 0.0)])
    series = interleave({"A": lambda: next(samples)}, Rules(num_runs=2, max_discards=5))["A"]
    assert series.values == [2.0, 3.0]
    assert series.num_discarded == 1


def test_discards_are_bounded_and_the_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.harness.time.sleep", lambda seconds: None)
    rules = Rules(num_runs=2, max_discards=3)
    series = interleave({"A": lambda: Sample(1.0, 0.9)}, rules)["A"]
    line = Measurement("lookup", "A", "M keys/s", series, {}, {}).line(rules)
    assert (line["num_runs"], line["num_discarded"], line["is_quiet"]) == (2, 3, False)


def test_the_ratio_pairs_samples_of_one_turn() -> None:
    series = {"ours": Series([2.0, 20.0, 6.0]), "theirs": Series([1.0, 10.0, 1.0])}
    assert ratios(series, "ours", ["theirs"]) == {"theirs": 2.0}


def test_a_line_is_json_with_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"rows": 10, "dim": 16, "batch": 4, "distribution": "zipf", "hit_rate": 1.0}
    series = Series([1.0, 3.0, 2.0], [0.0, 0.1, 0.0])
    emit(Measurement("lookup", "dict", "M keys/s", series, sizes, {"dict": "1"}, {"b": 2}), FAST)
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    line: dict[str, Any] = json.loads(output)
    assert line["median"] == 2.0
    assert line["spread"] == [1.0, 3.0]
    assert line["ratios"] == {"b": 2.0}
    assert sizes.items() <= line.items()
    assert {"name", "system", "unit", "versions", "cpu", "commit", "is_quiet"} <= line.keys()


def test_a_window_has_a_length() -> None:
    with timed() as window:
        sum(range(10_000))
    assert window.seconds > 0


def test_batch_times_are_minima_over_the_three_quietest_runs() -> None:
    runs: list[tuple[float, list[float]]] = [
        (0.0, [3.0, 1.0]),
        (0.9, [0.1, 0.1]),
        (0.1, [1.0, 2.0]),
        (0.2, [2.0, 3.0]),
    ]
    replies = [{"others_cores": cores, "batch_seconds": times} for cores, times in runs]
    assert batch_seconds(replies) == [1.0, 1.0]


def test_peers_join_only_where_asked_for() -> None:
    peers = [(20, 16, "tfra"), (10, 64, "tfra")]
    alone = matrix(Options(is_quick=False, with_peers=False), peers)
    joined = matrix(Options(is_quick=False, with_peers=True), peers)
    assert [case.systems for case in alone] == [("monolith", "torch")] * 4
    assert ("monolith", "tfra") in [case.systems for case in joined]
    assert table_bytes("torch", Workload(10, 16), with_state=True) == 10 * 16 * 4 * 2


def line_of(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "system": "monolith", "ratios": {}, **fields}


def test_the_worst_line_decides_a_target() -> None:
    target = next(t for t in targets.TARGETS if t.what == "lookup: x nn.EmbeddingBag forward")
    lines = [line_of("lookup", ratios={"torch": ratio}) for ratio in (0.5, 0.3)]
    assert target.measured(lines) == 0.3
    assert not target.is_met(0.3)
    assert target.is_met(0.35)
    assert target.measured([]) is None


def test_the_table_of_targets_names_what_was_missed() -> None:
    lines = [
        line_of("memory", optimizer="sgd", spread=[80.0, 98.0]),
        line_of("create_tables", median=12.0),
    ]
    rows = [" ".join(row.split()) for row in targets.table(lines).splitlines()]
    assert len(rows) == 1 + len(targets.TARGETS)
    assert "memory per key, dim 16 [B] <= 97 98 MISSED" in rows
    assert "creating 1,000 tables [ms] <= 50 12 met" in rows
    assert sum(row.endswith(" - not measured") for row in rows) == len(targets.TARGETS) - 2


def test_the_wait_of_a_reader_is_not_measured_without_a_calm_window() -> None:
    window = {"num_waits": 1, "wait_max_ns": 50_000, "num_preemptions": 3, "row_update_ns": 100.0}
    target = next(t for t in targets.TARGETS if t.name == "scaling_writer")
    assert target.measured([line_of("scaling_writer", **waits_summary([window]))]) is None
    calm = {**window, "num_preemptions": 0}
    assert target.measured([line_of("scaling_writer", **waits_summary([window, calm]))]) == 500
