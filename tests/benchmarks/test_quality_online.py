"""The study of freshness: who predicts what, with which rows, and what comes out."""

import contextlib
import itertools
import json
import math
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import history
from benchmarks.quality import arms, online
from benchmarks.quality.samples import Floats, Ids, Samples, exact_auc, join, timed_stream
from examples.clicks import BATCH, FEATURES, SEED
from examples.clicks_task import SECONDS_PER_STEP
from tools.commit import TreeError

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def steps(num: int) -> list[Samples]:
    return list(itertools.islice(timed_stream(SEED, 1.0), num))


def learned(num_batches: int = 3) -> tuple[arms.Learner, Samples]:
    """Return a learner, and samples that it has not seen."""
    learner, (step, after) = arms.Learner(1, 512), steps(2)
    for number in range(num_batches):
        learner.learn(step.part(number * 512, (number + 1) * 512))
    return learner, after


class TestSamples:
    def test_the_stream_is_that_of_the_demo_with_times_in_order(self) -> None:
        first, second = steps(2)
        assert (len(first), list(first.ids)) == (BATCH, list(FEATURES))
        assert (np.diff(np.concatenate([first.times, second.times])) >= 0).all()
        assert first.times[0] >= 0
        assert first.times[-1] < SECONDS_PER_STEP <= second.times[0]

    def test_samples_that_are_taken_apart_and_joined_are_the_same(self) -> None:
        step = steps(3)[-1]
        joined = join([step.part(0, 7), step.part(7, 100), step.part(100, BATCH)])
        for name in FEATURES:
            assert joined.ids[name].to_lists() == step.ids[name].to_lists()
        assert torch.equal(joined.labels, step.labels)

    def test_taken_samples_come_in_the_order_of_the_places(self) -> None:
        step = steps(3)[-1]
        taken = step.take(torch.tensor([5, 0, 9]))
        history = step.ids["history"].to_lists()
        assert taken.ids["history"].to_lists() == [history[5], history[0], history[9]]
        assert taken.times.tolist() == step.times[[5, 0, 9]].tolist()

    def test_equal_scores_are_half_right(self) -> None:
        assert exact_auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]) == 0.75
        assert exact_auc([0.5, 0.5, 0.5, 0.7], [0, 1, 1, 0]) == 0.25


class TestServingCopy:
    def test_a_refreshed_copy_predicts_as_the_learner_does(self) -> None:
        learner, after = learned()
        copy = arms.ServingCopy("copy", learner)
        assert copy.refresh() > 1000
        learner.learn(after.part(0, 512))
        assert 0 < copy.refresh() < 5000  # only what has changed
        assert np.array_equal(copy.score(after.ids), learner.score(after.ids))

    def test_rows_that_expire_leave_the_copy_at_its_refresh(self) -> None:
        learner, after = learned()
        copy = arms.ServingCopy("copy", learner)
        copy.refresh()
        learner.evict(8 * arms.DAY)
        assert copy.features.num_rows() > 0
        copy.refresh()
        assert copy.features.num_rows() == learner.features.num_rows() == 0
        assert np.array_equal(copy.score(after.ids), learner.score(after.ids))

    def test_a_copy_stays_as_it_is_while_the_learner_learns(self) -> None:
        learner, after = learned()
        copy = arms.ServingCopy("copy", learner)
        copy.refresh()
        before = copy.score(after.ids)
        learner.learn(after.part(0, 512))
        assert np.array_equal(copy.score(after.ids), before)
        assert not np.array_equal(learner.score(after.ids), before)


def test_a_twin_learns_the_same_and_apart() -> None:
    learner, after = learned()
    twin = learner.twin()
    before = learner.score(after.ids)
    twin.learn(after.part(0, 512))
    assert np.array_equal(learner.score(after.ids), before)
    learner.learn(after.part(0, 512))
    assert np.array_equal(learner.score(after.ids), twin.score(after.ids))


class Counted(arms.Predictor):
    """Predicts the number of its refreshes."""

    def __init__(self) -> None:
        self.version = 0.0

    def score(self, ids: Ids) -> Floats:
        return np.full(len(ids["user"]), self.version)


class CountedArm(arms.Arm):
    def __init__(self, start: float, interval: float) -> None:
        self.counted = Counted()
        super().__init__(self.counted, start, interval)

    def refresh(self, step: Samples, place: int) -> None:
        self.counted.version += 1


def versions(interval: float, batch: int = 64) -> tuple[Floats, Floats]:
    """Return the version that predicts each sample of two steps, and the samples' times."""
    arm, both = CountedArm(0.0, interval), steps(2)
    for step in both:
        for start in range(0, BATCH, batch):
            arm.before_batch(step, start, start + batch)
        arm.end_step(step)
    return arm.logits(), np.concatenate([step.times for step in both])


class TestArms:
    def test_a_sample_is_predicted_with_the_last_refresh_before_it(self) -> None:
        predicted, times = versions(3600.0)
        assert np.array_equal(predicted, np.floor(times / 3600))

    def test_intervals_shorter_than_a_batch_refresh_once_a_batch(self) -> None:
        predicted, times = versions(1.0)
        ends = times[63::64]  # a batch is learned with its last sample
        refreshed = np.concatenate([[1.0], np.floor(ends) + 1])[: len(ends)]
        expected = np.searchsorted(refreshed, times, side="right")
        assert np.array_equal(predicted, expected)

    def test_an_infinite_interval_refreshes_never(self) -> None:
        predicted, _ = versions(math.inf)
        assert not predicted.any()

    def test_the_online_arm_predicts_a_batch_before_it_learns_it(self) -> None:
        learner, after = learned()
        fresh = learner.score(after.part(0, 512).ids)
        arm = arms.Online(learner, 0.0)
        arms._learn_step(learner, after, {arms.ONLINE: arm}, 1)
        assert np.allclose(arm.logits()[:512], fresh)
        assert not np.allclose(arm.logits(), learner.score(after.ids), atol=0.01)

    def test_batch_training_learns_each_sample_of_a_finished_period_once(self) -> None:
        learner, _ = learned(0)
        trained: list[float] = []
        learner.learn = lambda samples: trained.extend(samples.times)  # type: ignore[method-assign]
        arm, both = arms.BatchTrained(learner, 0.0, 3600.0), steps(2)
        for step in both:
            for start in range(0, BATCH, 64):
                arm.before_batch(step, start, start + 64)
            arm.end_step(step)
        times = np.concatenate([step.times for step in both])
        assert sorted(trained) == times[times < 3 * 3600].tolist()
        assert trained != sorted(trained)


@pytest.fixture(scope="module")
def quick() -> dict[float, dict[str, Any]]:
    """Lines of the quick study by drift and arm."""
    runs = online.worlds(is_quick=True)
    lines = online.figures(runs, online.study(runs, 1))
    return {
        drift: {line["system"]: line for line in lines if line["drift"] == drift}
        for drift in online.QUICK_DRIFTS
    }


class TestQuickStudy:
    def test_all_arms_have_predicted_all_days(self, quick: Any) -> None:
        for by_arm in quick.values():
            assert list(by_arm) == [*arms.ARMS, arms.BEST]
            assert {len(line["auc_by_day"]) for line in by_arm.values()} == {2}

    def test_with_drift_the_fresh_model_beats_the_one_that_is_never_refreshed(
        self, quick: Any
    ) -> None:
        assert quick[1.0][arms.NEVER]["gap"] < -0.01
        assert quick[1.0][arms.NEVER]["log_loss"] > quick[1.0][arms.ONLINE]["log_loss"] + 0.005

    def test_with_drift_a_day_is_worse_than_an_hour(self, quick: Any) -> None:
        assert quick[1.0]["every day"]["gap"] < quick[1.0]["every hour"]["gap"] - 0.001

    def test_without_drift_the_arms_agree_far_better(self, quick: Any) -> None:
        for arm in ("every day", arms.NEVER):
            assert abs(quick[0.0][arm]["gap"]) < 0.5 * abs(quick[1.0][arm]["gap"])

    def test_no_arm_reaches_the_true_chances(self, quick: Any) -> None:
        for by_arm in quick.values():
            assert by_arm[arms.BEST]["gap"] > 0.05


LINES = [
    {
        "name": online.NAME, "system": arm, "drift": drift, "median": 0.75, "mean": 0.75,
        "spread": [0.74, 0.76], "unit": "AUC", "gap": -0.00123, "gap_spread": [-0.002, 0.0001],
        "log_loss": 0.5, "auc_by_day": [0.7, 0.8], "warm_days": 2, "days": 2,
    }
    for drift in online.DRIFTS
    for arm in (*arms.ARMS, arms.BEST)
]  # fmt: skip


class TestStoppedStudy:
    def test_worlds_that_are_done_are_not_run_again(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        first, second = (arms.World(0.0, seed, 1, 1, 64) for seed in (1, 2))
        ran: list[int] = []

        def run_world(world: arms.World) -> list[arms.Outcome]:
            ran.append(world.seed)
            return [arms.Outcome(arms.ONLINE, 0.7, 0.5, [0.7])]

        monkeypatch.setattr(online, "run_world", run_world)
        kept = tmp_path / "new" / "kept.jsonl"
        online.study([first], 1, kept)
        outcomes = online.study([first, second], 1, kept)
        assert ran == [1, 2]
        assert outcomes == [[arms.Outcome(arms.ONLINE, 0.7, 0.5, [0.7])]] * 2


class TestCommand:
    def test_the_tables_have_a_row_for_each_arm(self) -> None:
        row = "| never | 0.7500 | -12.3 (-20.0 to +1.0) | 0.7500 | -12.3 (-20.0 to +1.0) |"
        assert any(line.startswith(row) for line in online.table(LINES).splitlines())
        assert "| never | 0.5000 | 0.5000 | 0.5000 |" in online.loss_table(LINES).splitlines()

    @pytest.mark.parametrize("number", ["0", "-1"])
    def test_too_few_processes_are_refused(
        self, number: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit, match="2"):
            online.parse(["--processes", number])
        message = f"expected --processes of at least 1, got {number}"
        assert message in capsys.readouterr().err

    def test_a_tree_with_changes_is_refused_before_the_work(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def refuse(where: str, advice: str, **_: Any) -> str:
            raise TreeError(f"[{where}] got changed files; {advice}")

        monkeypatch.setattr(online, "clean_commit", refuse)
        assert online.main([]) == 2
        message = "[online] got changed files; commit them, or run with --no-record\n"
        assert capsys.readouterr().err == message

    def test_a_full_run_is_recorded_and_drawn_from_the_record(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        results, drawn, redrawn = tmp_path / "r.json", tmp_path / "a.png", tmp_path / "b.png"
        monkeypatch.setattr(online, "RESULTS", results)
        monkeypatch.setattr(online, "ROOT", tmp_path.parent)
        monkeypatch.setattr(online, "clean_commit", lambda *_, **__: "a" * 40)
        monkeypatch.setattr(online, "study", lambda runs, processes, kept: [])
        monkeypatch.setattr(online, "figures", lambda runs, outcomes: LINES)
        with contextlib.redirect_stdout(StringIO()):
            assert online.main(["--figure", str(drawn)]) == 0
            assert online.main(["--draw", "--figure", str(redrawn)]) == 0
        (run,) = history.read_runs(results)
        assert run["figures"] == json.loads(json.dumps(LINES))
        assert drawn.read_bytes() == redrawn.read_bytes()
        assert drawn.read_bytes().startswith(b"\x89PNG")

    def test_nothing_is_drawn_without_a_recorded_run(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(online, "RESULTS", tmp_path / "r.json")
        assert online.main(["--draw"]) == 2
        message = f"expected a recorded run in {tmp_path / 'r.json'}, got none"
        assert message in capsys.readouterr().err

    def test_a_missing_package_is_named_with_its_extra(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(SystemExit) as end:
            online.main(["--draw"])
        message = "[online] expected matplotlib to be installed; pip install 'monolith-torch[demo]'"
        assert end.value.code == message

    def test_help_begins_with_what_the_study_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="0"):
            online.parse(["--help"])
        assert "What freshness is worth" in capsys.readouterr().out
