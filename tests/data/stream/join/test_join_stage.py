"""Pipelines of joined events."""

import itertools
import re

import pyarrow as pa
import pytest
from pyarrow import parquet

from monolith import data
from monolith.data.columns import Columns
from monolith.data.stream.join import JoinSettings, join_events
from monolith.errors import FailedPreconditionError

SETTINGS = JoinSettings("key", 10, {"click": ["click"]})
SHOWN = Columns(["key", "item"], time="time")
ACTED = Columns(["key", "kind"], time="time")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("monolith.data.memory._BLOCK", 7)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def shown(keys, times=None):
    rows = {"key": keys, "item": [key % 5 for key in keys], "time": times or keys}
    return data.arrow_table(pa.table(rows), columns=SHOWN)


def acted(keys, times, kind="click"):
    rows = {"key": keys, "kind": [kind] * len(keys), "time": times}
    return data.arrow_table(pa.table(rows), columns=ACTED)


def inputs():
    """Impressions 0 to 99, one each second, of which every third is clicked two seconds later."""
    clicked = list(range(0, 100, 3))
    return [shown(list(range(100))), acted(clicked, [key + 2 for key in clicked])]


def rows(batches):
    return [
        (key[0], label)
        for batch in batches
        for key, label in zip(batch.features["key"].to_lists(), batch.label.tolist(), strict=True)
    ]


EXPECTED = [(key, float(key % 3 == 0)) for key in range(100)]


@pytest.mark.req("RT-T3")
@pytest.mark.parametrize("has_folder", [True, False])
def test_a_pipeline_joins_and_resumes_at_every_batch(tmp_path, has_folder):
    folder = tmp_path if has_folder else None
    source = join_events(inputs(), SETTINGS, folder=folder, save_every=30, num_kept=99).batch(9)
    with iter(source) as batches:
        states = [(batches.state_dict(), []), *((batches.state_dict(), rows([b])) for b in batches)]
    assert list(itertools.chain(*(done for _, done in states))) == EXPECTED
    before = 0
    for state, done in states:
        before += len(done)
        with source.resume(state) as batches:
            assert rows(batches) == EXPECTED[before:]


def test_prefetch_and_shuffle_stand_after_a_join():
    source = join_events(inputs(), SETTINGS).shuffle(50).batch(9).prefetch()
    with iter(source) as batches:
        assert sorted(rows(batches)) == EXPECTED


def test_the_stage_shows_the_counts():
    source = join_events(inputs(), SETTINGS)
    assert len(rows(source.batch(50))) == 100
    assert source.stage.counts["joined_actions"] == 34


def test_impressions_may_come_from_several_inputs():
    several = [shown([1, 3, 5]), acted([2], [3]), shown([2, 4])]
    assert sorted(rows(join_events(several, SETTINGS).batch(9))) == [
        (1, 0.0), (2, 1.0), (3, 0.0), (4, 0.0), (5, 0.0)
    ]  # fmt: skip


def test_one_input_may_have_both():
    table = pa.table({"key": [1, 2, 1], "time": [0, 1, 2], "kind": ["shown", "shown", "click"]})
    settings = JoinSettings("key", 10, {"click": ["click"]}, impression="shown")
    mixed = join_events([data.arrow_table(table, columns=ACTED)], settings)
    assert mixed.columns.names() == ["key", "click", "time"]
    assert rows(mixed.batch(9)) == [(1, 1.0), (2, 0.0)]


def test_the_correction_is_a_column_of_the_batch():
    settings = JoinSettings("key", 10, {"click": ["click"]}, negative_rate=0.5)
    batch = next(iter(join_events(inputs(), settings).batch(99)))
    assert batch.dense["log_odds_offset"].tolist() == [pytest.approx(-0.6931472)] * len(batch)


def test_select_keeps_the_columns_of_the_join():
    batch = next(iter(join_events(inputs(), SETTINGS).batch(9).select("item", "click")))
    assert list(batch.features) == ["item"]
    assert batch.label.tolist() == [1.0, 0.0, 0.0] * 3


def files(folder, count=3):
    """Impressions, nine in each of some files."""
    for number in range(count):
        keys = range(number * 9, number * 9 + 9)
        table = pa.table({"key": keys, "item": range(9), "time": keys})
        parquet.write_table(table, folder / f"{number}.parquet")
    return data.parquet(folder, columns=SHOWN)


@pytest.mark.parametrize(("has_folder", "gone"), [(True, 2), (False, 0)])
def test_files_that_are_left_to_read_are_missed(tmp_path, has_folder, gone):
    first, folder = files(tmp_path), tmp_path / "state" if has_folder else None
    with iter(join_events([first, acted([1], [1])], SETTINGS, folder=folder).batch(4)) as batches:
        next(batches)
        state = batches.state_dict()
    (tmp_path / f"{gone}.parquet").unlink()
    source = join_events([files_left(tmp_path), acted([1], [1])], SETTINGS, folder=folder).batch(4)
    with pytest.raises(
        FailedPreconditionError, match=rf"expected file .*{gone}\.parquet.* got none"
    ):
        source.resume(state)


def files_left(folder):
    return data.parquet(folder / "*.parquet", columns=SHOWN)


def test_a_file_that_was_read_may_be_gone(tmp_path):
    files(tmp_path)
    folder, clicks = tmp_path / "state", acted([1], [1])
    source = join_events([files_left(tmp_path), clicks], SETTINGS, folder=folder).batch(4)
    with iter(source) as batches:
        done, state = rows([next(batches), next(batches)]), batches.state_dict()
    (tmp_path / "0.parquet").unlink()
    source = join_events([files_left(tmp_path), clicks], SETTINGS, folder=folder).batch(4)
    with source.resume(state) as batches:
        assert [key for key, _ in done + rows(batches)] == list(range(27))


def test_a_state_of_other_settings_is_refused():
    with iter(join_events(inputs(), SETTINGS).batch(9)) as batches:
        state = batches.state_dict()
    other = join_events(inputs(), JoinSettings("key", 11, {"click": ["click"]})).batch(9)
    with pytest.raises(FailedPreconditionError, match=re.escape("state of this pipeline")):
        other.resume(state)


def test_the_progress_is_that_of_all_inputs():
    with iter(join_events(inputs(), SETTINGS).batch(500)) as batches:
        assert batches.progress == (0, 134)
        next(batches)
        assert batches.progress == (134, 134)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: [shown([1]), data.arrow_table({"key": [1], "time": [2]})], "(input 1)"),
        (lambda: [acted([1], [1])], "expected an input with impressions, got 1 inputs"),
        (lambda: [shown([1]), acted([1], [1]).drop("kind")], "expected impressions with columns"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(make, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        join_events(make(), SETTINGS)


def test_a_label_that_is_a_column_is_refused():
    with pytest.raises(ValueError, match="expected impressions without a column 'item'"):
        join_events(inputs(), JoinSettings("key", 10, {"item": [1]}))


def test_an_idle_limit_needs_a_folder(tmp_path):
    with pytest.raises(ValueError, match="expected a folder with idle_seconds, got none"):
        join_events(inputs(), SETTINGS, idle_seconds=1.0)
    with pytest.raises(ValueError, match=r"expected idle_seconds above 0, got 0\.0"):
        join_events(inputs(), SETTINGS, folder=tmp_path, idle_seconds=0.0)


def test_an_input_that_does_not_open_closes_the_others(tmp_path):
    class Closed:
        is_closed = False

        def close(self):
            self.is_closed = True

    class Stage:
        def __init__(self, cursor):
            self.cursor = cursor

        def describe(self):
            return ["stage"]

        def open(self, epoch, state=None):
            if self.cursor is None:
                raise OSError("no such input")
            return self.cursor

    first, source = Closed(), join_events(inputs(), SETTINGS, folder=tmp_path)
    stage = type(source.stage)((Stage(first), Stage(None)), SETTINGS, source.stage.options)
    with pytest.raises(OSError, match="no such input"):
        stage.open(0)
    assert first.is_closed
