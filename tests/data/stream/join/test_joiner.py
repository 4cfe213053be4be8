"""What becomes of each event, and what a joiner refuses."""

import math

import numpy as np
import pyarrow as pa
import pytest

from monolith.data.stream.join import JoinSettings, OnlineJoiner
from monolith.errors import DataLossError, FailedPreconditionError, NotFoundError
from tests.data.stream.join.events import acted, block, joiner, keys, labels, settings, shown


@pytest.fixture(autouse=True)
def no_waits_for_the_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def counted(ours, **expected):
    return {name: ours.counts[name] for name in expected} == expected


@pytest.mark.req("RT-T3")
def test_a_sample_leaves_when_both_inputs_passed_its_window():
    ours = joiner(window=10)
    assert ours.add(shown((1, 100), (2, 111), (3, 120)), 0) is None
    assert keys(ours.add(acted((1, 110, 5), (3, 121, 7)), 1)) == [1]
    assert labels(ours.finish()) == [(2, 0.0, 0.0), (3, 0.0, 1.0)]
    assert counted(ours, impressions=3, joined_actions=2, positives=2, negatives=1)


def test_a_window_has_both_its_ends():
    ours = joiner(window=10)
    ours.add(shown((1, 100), (2, 100), (3, 100)), 0)
    ours.add(acted((1, 99, 5), (2, 110, 5), (3, 100, 5), (1, 111, 5)), 1)
    assert labels(ours.finish()) == [(1, 0.0, 0.0), (2, 1.0, 0.0), (3, 1.0, 0.0)]
    assert counted(ours, outside_actions=2, joined_actions=2)


def test_lateness_keeps_a_window_open():
    ours = joiner(window=10, lateness=5, num_inputs=1, impression=1)
    assert ours.add(block({"key": [1, 9], "time": [0, 15], "kind": [1, 1]})) is None
    assert keys(ours.add(block({"key": [9], "time": [16], "kind": [1]}))) == [1]


def test_an_action_may_come_before_its_impression():
    ours = joiner(window=10)
    ours.add(acted((1, 103, 5)), 1)
    ours.add(shown((1, 100)), 0)
    assert labels(ours.finish()) == [(1, 1.0, 0.0)]


@pytest.mark.req("RT-T3")
def test_an_action_of_a_sample_that_left_is_late():
    ours = joiner(window=10)
    ours.leave_out(1)
    assert keys(ours.add(shown((1, 0), (2, 11)), 0)) == [1]
    ours.add(acted((1, 5, 5)), 1)
    assert counted(ours, late_actions=1, unmatched_actions=0)


def test_an_action_is_late_after_its_window_even_without_an_impression():
    ours = joiner(window=10)
    ours.leave_out(1)
    ours.add(shown((1, 100)), 0)
    ours.add(acted((7, 89, 5), (8, 90, 5)), 1)
    assert counted(ours, late_actions=1)


def test_an_action_without_impression_is_given_up_after_its_window():
    ours = joiner(window=10, num_inputs=1, impression=1)
    ours.add(acted((7, 100, 5)))
    ours.add(shown((1, 110)))
    assert counted(ours, unmatched_actions=0)
    ours.add(shown((2, 111)))
    assert counted(ours, unmatched_actions=1)


def test_a_late_impression_is_dropped():
    ours = joiner(window=10, num_inputs=1)
    ours.add(shown((1, 100), (2, 89), (3, 90)))
    assert keys(ours.finish()) == [3, 1]
    assert counted(ours, late_impressions=1)


@pytest.mark.req("RT-T3")
def test_duplicates_are_dropped_while_their_key_is_remembered():
    ours = joiner(window=10, num_inputs=1)
    samples = [keys(ours.add(shown((1, time), (0, time + 1)))) for time in (0, 5, 19, 20)]
    assert samples == [[], [], [1, 0], []]
    assert counted(ours, duplicate_impressions=6)
    ours.add(shown((9, 22)))
    ours.add(shown((1, 22)))
    assert counted(ours, duplicate_impressions=6)


def test_an_action_of_the_same_kind_is_a_duplicate():
    ours = joiner(window=10)
    ours.add(shown((1, 0)), 0)
    ours.add(acted((1, 1, 5), (1, 2, 5), (1, 3, 6), (1, 4, 5)), 1)
    assert labels(ours.finish()) == [(1, 1.0, 0.0)]
    assert counted(ours, joined_actions=2, duplicate_actions=2)


def test_a_kind_of_no_label_is_counted():
    ours = joiner(window=10)
    ours.add(acted((1, 1, 99)), 1)
    assert counted(ours, actions=1, other_actions=1)


def test_a_sample_can_leave_with_its_first_action():
    ours = joiner(window=10, leaves_at_once=True)
    ours.add(shown((1, 100), (2, 100)), 0)
    assert labels(ours.add(acted((1, 101, 5), (1, 102, 7)), 1)) == [(1, 1.0, 0.0)]
    assert counted(ours, joined_actions=1, late_actions=1)
    assert labels(ours.finish()) == [(2, 0.0, 0.0)]


def test_waiting_actions_are_joined_before_a_sample_leaves_at_once():
    ours = joiner(window=10, leaves_at_once=True)
    ours.add(acted((1, 101, 5), (1, 102, 7)), 1)
    assert labels(ours.add(shown((1, 100)), 0)) == [(1, 1.0, 1.0)]


def test_samples_keep_the_columns_of_their_impression():
    ours = joiner(window=10, num_inputs=1, impression=1)
    ours.add(block({"key": [1, 2, 1], "time": [0, 1, 2], "kind": [1, 1, 7], "item": [30, 40, -1]}))
    assert ours.finish().to_pylist() == [
        {"key": 1, "time": 0, "item": 30, "click": 0.0, "buy": 1.0},
        {"key": 2, "time": 1, "item": 40, "click": 0.0, "buy": 0.0},
    ]


def test_every_event_is_counted_once():
    ours, draw = joiner(window=7, lateness=3, leaves_at_once=True), np.random.default_rng(0)
    for clock in range(0, 300, 5):
        at = clock + draw.integers(-15, 5, 40)
        ours.add(shown(*zip(draw.integers(0, 60, 40).tolist(), at.tolist(), strict=True)), 0)
        rows = (draw.integers(0, 60, 40), at, draw.integers(4, 9, 40))
        ours.add(acted(*zip(*(each.tolist() for each in rows), strict=True)), 1)
    ours.finish()
    counts = ours.counts
    parts = ("late_impressions", "duplicate_impressions", "positives", "negatives")
    assert counts["impressions"] == sum(counts[name] for name in parts) == 60 * 40
    parts = ("joined", "late", "outside", "duplicate", "unmatched", "other")
    assert counts["actions"] == sum(counts[f"{name}_actions"] for name in parts) == 60 * 40
    assert all(counts[f"{name}_actions"] for name in parts)


# Negatives.


def half(**options):
    ours = joiner(window=10, num_inputs=1, negative_rate=0.5, **options)
    ours.add(shown(*((key, 0) for key in range(2_000))))
    ours.add(acted((3, 5, 5)))
    return ours.finish(), ours


@pytest.mark.req("RT-T3")
def test_negatives_are_sampled_with_the_log_odds_of_their_rate():
    samples, ours = half()
    assert 900 < samples.num_rows < 1_100
    assert samples["log_odds_offset"].to_pylist() == [pytest.approx(math.log(0.5))] * len(samples)
    assert counted(ours, positives=1, dropped_negatives=2_000 - samples.num_rows)


def test_the_weight_of_a_negative_can_be_corrected():
    samples, _ = half(correction="weight")
    weights = dict(zip(keys(samples), samples["instance_weight"].to_pylist(), strict=True))
    assert weights.pop(3) == 1.0
    assert set(weights.values()) == {2.0}


def test_a_weight_of_an_impression_is_multiplied():
    ours = joiner(window=10, num_inputs=1, negative_rate=0.5, correction="weight")
    many = shown(*((key, 0) for key in range(20)))
    ours.add(many.append_column("instance_weight", pa.array([3.0] * 20, pa.float32())))
    assert set(ours.finish()["instance_weight"].to_pylist()) == {6.0}


def test_the_choice_of_negatives_depends_on_key_and_seed_alone():
    chosen = keys(half()[0])
    ours = joiner(window=10, num_inputs=1, negative_rate=0.5)
    for key in reversed(range(2_000)):
        ours.add(shown((key, 0)))
    ours.finish()
    again = joiner(window=10, num_inputs=1, negative_rate=0.5)
    again.add(shown(*((key, 0) for key in reversed(range(2_000)))))
    assert sorted({*keys(again.finish()), 3}) == sorted(chosen)
    assert keys(half(seed=1)[0]) != chosen


# Memory and state.


def test_features_beyond_the_memory_are_read_from_the_folder(tmp_path):
    ours = joiner(window=10, num_inputs=1, folder=tmp_path, files={"memory_bytes": 100})
    for key in range(50):
        ours.add(shown((key, 0), item=[key * 7]))
    assert 0 < ours.memory_bytes <= 100
    samples = ours.finish()
    assert samples["item"].to_pylist() == [key * 7 for key in range(50)]
    assert ours.memory_bytes == 0


def test_memory_is_free_when_samples_left():
    ours = joiner(window=10, num_inputs=1)
    for time in range(100):
        ours.add(shown((time, time), (0, time)))
    assert ours.memory_bytes <= 13 * 2 * 8 * 2


def fill(ours):
    ours.add(shown((1, 100), (2, 100)), 0, {"row": 2})
    ours.add(acted((1, 101, 5), (5, 101, 5)), 1, {"row": 2})


@pytest.mark.req("RT-T3")
@pytest.mark.parametrize("save_every", [1, 100])
def test_a_resumed_joiner_has_events_positions_and_counts(tmp_path, save_every):
    ours = joiner(folder=tmp_path, files={"save_every": save_every})
    fill(ours)
    state, counts = ours.state(), ours.counts
    again = joiner(folder=tmp_path, state=state)
    assert again.state()["positions"] == again.final_positions == [{"row": 2}, {"row": 2}]
    assert again.counts == counts
    again.add(shown((5, 99)), 0)
    assert labels(again.finish()) == [(5, 1.0, 0.0), (1, 1.0, 0.0), (2, 0.0, 0.0)]


def test_a_resumed_joiner_repeats_what_came_after_its_state(tmp_path):
    ours = joiner(folder=tmp_path, files={"save_every": 3})
    state = ours.state()
    fill(ours)
    ours.leave_out(0)
    expected = labels(ours.finish())
    again = joiner(folder=tmp_path, state=state, files={"save_every": 3})
    assert again.final_positions == [{"row": 2}, {"row": 2}]
    assert [labels(samples) for samples in again.replay()] == [[], [], [], expected]


def test_a_resumed_joiner_refuses_events_before_it_repeated_all(tmp_path):
    ours = joiner(folder=tmp_path)
    state = ours.state()
    fill(ours)
    again = joiner(folder=tmp_path, state=state)
    with pytest.raises(FailedPreconditionError, match=r"got 2 calls left; .* replay\(\) first"):
        again.add(shown((9, 200)), 0)


def test_a_write_that_was_interrupted_ends_the_log(tmp_path):
    ours = joiner(folder=tmp_path)
    ours.add(shown((1, 100)), 0)
    state = ours.state()
    ours.add(shown((2, 100)), 0)
    (log,) = tmp_path.glob("log-*")
    log.write_bytes(log.read_bytes()[:-1])
    again = joiner(folder=tmp_path, state=state)
    assert list(again.replay()) == []
    assert keys(again.finish()) == [1]


def test_a_log_without_the_events_of_the_state_is_refused(tmp_path):
    ours = joiner(folder=tmp_path)
    ours.add(shown((1, 100)), 0)
    (log,) = tmp_path.glob("log-*")
    damaged = bytearray(log.read_bytes())
    damaged[-200] ^= 1
    log.write_bytes(damaged)
    with pytest.raises(DataLossError, match=r"expected 1 records in the log .* got 0 whole ones"):
        joiner(folder=tmp_path, state=ours.state())


def test_a_damaged_snapshot_is_refused(tmp_path):
    state = joiner(folder=tmp_path).state()
    (snapshot,) = tmp_path.glob("snapshot-*")
    snapshot.write_bytes(snapshot.read_bytes()[:-64])
    with pytest.raises(DataLossError, match=r"expected 3 tables in snapshot .* got 2 whole ones"):
        joiner(folder=tmp_path, state=state)


def test_old_files_are_removed_and_their_state_is_refused(tmp_path):
    ours = joiner(folder=tmp_path, num_inputs=1, files={"save_every": 1, "num_kept": 2})
    state = ours.state()
    for time in range(0, 200, 10):
        ours.add(shown((time, time)))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len([name for name in names if name.startswith("snapshot")]) == 2
    assert len([name for name in names if name.startswith("log")]) <= 5
    assert keys(joiner(folder=tmp_path, num_inputs=1, state=ours.state()).finish()) == [180, 190]
    with pytest.raises(NotFoundError, match=r"snapshot-00000001' of the saved state, got none"):
        joiner(folder=tmp_path, num_inputs=1, state=state)


def test_a_state_that_is_resumed_often_stays(tmp_path):
    ours = joiner(folder=tmp_path, num_inputs=1, files={"num_kept": 2})
    ours.add(shown((1, 0)))
    state = ours.state()
    for _ in range(5):
        again = joiner(folder=tmp_path, num_inputs=1, state=state, files={"num_kept": 2})
    assert keys(again.finish()) == [1]


def test_a_state_fits_equal_settings_only(tmp_path):
    state = joiner(window=10, folder=tmp_path).state()
    with pytest.raises(FailedPreconditionError, match="expected a state of a joiner with these"):
        joiner(window=11, folder=tmp_path, state=state)


def test_a_joiner_without_folder_has_no_state(tmp_path):
    ours = joiner(folder=tmp_path)
    with pytest.raises(ValueError, match="expected the folder of the state, got none"):
        joiner(state=ours.state())
    with pytest.raises(FailedPreconditionError, match="expected a folder for the state, got none"):
        joiner().state()


def test_closing_keeps_the_files(tmp_path):
    ours = joiner(folder=tmp_path)
    fill(ours)
    ours.close()
    assert keys(joiner(folder=tmp_path, state=ours.state()).finish()) == [1, 2]


def test_no_events_are_no_samples():
    assert joiner().add(shown(), 0) is None


# Refusals.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"window": 0}, "expected window of at least 1, got 0"),
        ({"lateness": -1}, "expected lateness of at least 0, got -1"),
        ({"negative_rate": 1.5}, "expected negative_rate from 0 to 1, got 1.5"),
        ({"impression": 5}, "expected another kind for impressions than for labels, got 5"),
    ],
)
def test_settings_out_of_range_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        settings(**options)


def test_labels_need_kinds():
    with pytest.raises(ValueError, match="expected 1 to 62 kinds of actions in labels, got 0"):
        JoinSettings("key", 10, {"click": []})
    with pytest.raises(ValueError, match="got 63"):
        JoinSettings("key", 10, {"click": range(63)})
    with pytest.raises(TypeError, match=r"got 'click' \(label 'y'\); write \['click'\]"):
        JoinSettings("key", 10, {"y": "click"})


@pytest.mark.parametrize("name", ["num_inputs", "save_every", "num_kept", "memory_bytes"])
def test_arguments_out_of_range_are_refused(name):
    with pytest.raises(ValueError, match=f"expected {name} of at least .*, got -1"):
        OnlineJoiner(settings(), **{name: -1})


def test_events_that_do_not_fit_are_refused():
    ours = joiner()
    with pytest.raises(ValueError, match="expected an input from 0 to 1, got 2"):
        ours.add(shown((1, 1)), 2)
    with pytest.raises(ValueError, match=r"expected a column 'time', got \['key'\]"):
        ours.add(block({"key": [1]}), 0)
    with pytest.raises(TypeError, match="got type string with 0 missing"):
        ours.add(pa.record_batch({"key": ["a"], "time": [1]}), 0)
    with pytest.raises(TypeError, match="got type int64 with 1 missing"):
        ours.add(pa.record_batch({"key": [1], "time": pa.array([None], pa.int64())}), 0)
    with pytest.raises(ValueError, match="expected times of at most"):
        ours.add(shown((1, 1 << 61)), 0)
    with pytest.raises(ValueError, match="expected impressions without a column 'click'"):
        ours.add(shown((1, 1), click=[1]), 0)
