"""Runs save links between full checkpoints, make full ones of them, and go on with either."""

import logging

import pytest
import torch

from monolith.checkpoint import Chain, existing_checkpoints, find, open_checkpoint
from monolith.errors import OpError
from monolith.table import Table
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from monolith.train import CheckpointHook, Trainer, TrainSettings
from tests.suites.table_base import assert_same_rows
from tests.train.resumable import Clicks as Pipelined
from tests.train.tasks import Clicks, Raise, StopAfter, clicks, state_of
from tests.train.test_background_saves import At, recorded_of
from tests.train.test_recovery import Fault

BATCHES = clicks(60, size=2)


def settings_of(path, **options):
    defaults = {"save_every": 1, "keep": 0, "busy_save": "wait", "full_every": 4}
    return TrainSettings(checkpoint_dir=str(path), **{**defaults, **options})


def links_in(path):
    """Return the steps of the links in a folder."""
    checkpoints = [open_checkpoint(prefix) for prefix in existing_checkpoints(path)]
    return {checkpoint.step for checkpoint in checkpoints if checkpoint.manifest.base is not None}


def test_a_run_saves_links_and_makes_full_checkpoints_of_them(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with Trainer(Clicks(BATCHES), settings_of(tmp_path)) as trainer:
        saves = trainer.fit().saves
    assert saves.num_saved == 60
    assert 0 < saves.num_full < 30
    assert saves.num_compacted > 2
    assert caplog.text.count("is made of its links") == saves.num_compacted
    assert 10 < len(links_in(tmp_path)) < 60


def test_every_checkpoint_of_a_run_is_full_with_full_every_1(tmp_path):
    with Trainer(Clicks(BATCHES), settings_of(tmp_path, full_every=1)) as trainer:
        saves = trainer.fit().saves
    assert (saves.num_full, saves.num_compacted, links_in(tmp_path)) == (60, 0, set())


def test_each_checkpoint_restores_the_state_of_its_step(tmp_path):
    states = {}

    class Noting(At):
        def after_run(self, ctx, results):
            states[ctx.run.global_step] = state_of(trainer)

    with Trainer(Clicks(BATCHES), settings_of(tmp_path)) as trainer:
        trainer.fit(hooks=[Noting(0, None)])
    for prefix in existing_checkpoints(tmp_path)[::7]:
        with Trainer(Clicks(BATCHES)) as other:
            step = other.restore(prefix).step
            assert state_of(other) == states[step]


def test_a_run_goes_on_with_a_link_and_continues_its_chain(tmp_path):
    with Trainer(Clicks(BATCHES), clock=lambda: 100) as trainer:
        trainer.fit()
        whole = state_of(trainer)
    settings = settings_of(tmp_path, full_every=99)
    with Trainer(Clicks(BATCHES), settings, clock=lambda: 100) as trainer:
        trainer.fit(hooks=[StopAfter(40)])
    with Trainer(Clicks(BATCHES[40:]), settings, clock=lambda: 100) as trainer:
        trainer.restore(tmp_path)
        saves = trainer.fit().saves
        assert state_of(trainer) == whole
    assert saves.num_full == 0
    assert links_in(tmp_path) >= set(range(41, 61))


def test_rows_that_change_between_a_restore_and_a_fit_are_saved(tmp_path):
    settings = settings_of(tmp_path, full_every=99)
    with Trainer(Clicks(BATCHES), settings) as trainer:
        trainer.fit(hooks=[StopAfter(40)])
    with Trainer(Clicks(BATCHES[:1]), settings) as trainer:
        trainer.restore(tmp_path)
        trainer.features.tables["user"].assign(torch.tensor([-5]), torch.ones(1, 4))
        assert trainer.fit().saves.num_full == 0
    rows = find(tmp_path).load_tables()["user"].lookup(torch.tensor([-5]))
    assert rows.tolist() == [[1.0] * 4]


@pytest.mark.parametrize("directory", [None, "other"])
def test_a_restore_that_no_save_continues_leaves_no_cursor(tmp_path, directory):
    with Trainer(Clicks(BATCHES), settings_of(tmp_path / "one")) as trainer:
        trainer.fit(hooks=[StopAfter(3)])
    settings = TrainSettings(checkpoint_dir=directory and str(tmp_path / directory))
    with Trainer(Clicks(BATCHES), settings) as trainer:
        trainer.restore(tmp_path / "one")
        trainer.restore(tmp_path / "one")
        table = trainer.features.tables["user"]
        assert len(table.cursors()) == 1
        trainer.fit()
        assert table.cursors() == []


def test_a_fit_leaves_no_cursor(tmp_path):
    with Trainer(Clicks(BATCHES), settings_of(tmp_path)) as trainer:
        trainer.fit(hooks=[StopAfter(5)])
        assert [table.cursors() for table in trainer.features.tables.values()] == [[], []]


def test_a_recovery_goes_back_to_a_link_and_continues_it(tmp_path):
    settings = settings_of(tmp_path, full_every=99)
    fault = Fault("table", step=28)
    with Trainer(Pipelined("plain"), settings) as trainer:
        fault.attach(trainer)
        result = trainer.fit(hooks=[fault.hook()])
        table = trainer.features.tables["user"]
        assert result.num_recoveries == 1
        assert {28, 29, 30, 36} <= links_in(tmp_path)
        assert_same_rows(find(tmp_path).load_tables()["user"], table)


def test_a_compaction_that_fails_is_told_and_the_run_goes_on(tmp_path, monkeypatch, caplog):
    def fail(chain, options):
        raise OpError("[test] expected room, got none")

    monkeypatch.setattr(Chain, "compact", fail)
    with Trainer(Clicks(BATCHES), settings_of(tmp_path)) as trainer:
        saves = trainer.fit().saves
    assert (saves.num_saved, saves.num_compacted) == (60, 0)
    assert "no full checkpoint is made of the links: [test] expected room" in caplog.text


def test_an_error_in_the_code_of_a_compaction_ends_the_run(tmp_path, monkeypatch):
    def fail(chain, options):
        raise KeyError("wrong")

    monkeypatch.setattr(Chain, "compact", fail)
    with Trainer(Clicks(BATCHES), settings_of(tmp_path)) as trainer, pytest.raises(KeyError):
        trainer.fit()


def test_a_run_that_fails_abandons_its_compaction(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    hooks = [Raise(50, ZeroDivisionError())]
    settings = settings_of(tmp_path, save_rate=0.001)
    with Trainer(Clicks(BATCHES), settings) as trainer, pytest.raises(ZeroDivisionError):
        trainer.fit(hooks=hooks)
    assert find(tmp_path, fallback=True).step >= 48
    assert list(tmp_path.rglob("*.tmp-*")) == []


def test_the_touched_log_that_overflows_makes_the_next_save_full(tmp_path, monkeypatch):
    def small_log(config, **options):
        return Table(config, **{**options, "changes_bytes": 0})

    monkeypatch.setattr("monolith.train.hosting.Table", small_log)
    events = []

    class Reasons(CheckpointHook):
        def _note(self, step, num_samples, pause_seconds, written):
            events.append(written.saved.reason)
            super()._note(step, num_samples, pause_seconds, written)

    hook = Reasons(tmp_path, every_steps=10, busy="wait")
    with Trainer(Clicks(BATCHES)) as trainer:
        assert trainer.fit(hooks=[hook]).saves.num_full == 6
    assert events == ["first"] + ["log"] * 5


@pytest.mark.thorough
@pytest.mark.parametrize(("prefetch", "push"), [(0, 0), (2, 1)])
def test_links_and_compactions_of_a_run_equal_the_replay_up_to_their_cuts(
    tmp_path, monkeypatch, prefetch, push
):
    records, cuts = {}, {}

    def recorded(config, **options):
        records[config.name] = Record()
        return Table(config, record=records[config.name], **options)

    class Noting(CheckpointHook):
        def _cut(self, **options):
            snapshot = super()._cut(**options)
            cuts[self._trainer.state.step] = snapshot.tables
            return snapshot

    monkeypatch.setattr("monolith.train.hosting.Table", recorded)
    hook = Noting(tmp_path, every_steps=1, rate=0.2, keep=0, busy="wait", full_every=3)
    settings = TrainSettings(prefetch=prefetch, push=push)
    with Trainer(Clicks(clicks(60, size=2)), settings, clock=lambda: 100) as trainer:
        saves = trainer.fit(hooks=[hook]).saves
    numbers = {step: [(t.config, recorded_of(t)) for t in tables] for step, tables in cuts.items()}
    assert saves.num_compacted > 0
    assert len(links_in(tmp_path)) > 10
    for prefix in existing_checkpoints(tmp_path):
        checkpoint = open_checkpoint(prefix)
        for config, (number,) in numbers[checkpoint.step]:
            reference = ReferenceTable(config, clock=lambda: 100)
            records[config.name].replay(reference, 0, number)
            assert_same_rows(checkpoint.load_tables()[config.name], reference)
