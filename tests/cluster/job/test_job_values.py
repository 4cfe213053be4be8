"""What crosses between workers and the state of a job, and its checks."""

import json

import pytest

from monolith.cluster.job import job_values
from monolith.cluster.job.job_state import JobState
from monolith.cluster.job.job_values import (
    HeldShares,
    SavedJob,
    check_facts,
    check_held,
    first_difference,
    is_share,
    name_of,
    share_of,
)
from monolith.errors import InvalidArgumentError

SHARE = share_of(2, 'a"b')


def test_a_share_has_an_epoch_and_a_name():
    assert name_of(SHARE) == (2, 'a"b')
    assert is_share(SHARE)


@pytest.mark.parametrize("text", ["", "{", "5", "[1]", "[-1, 'a']", "[1, 2]", "[" * 99_999, 5, []])
def test_another_text_is_no_share(text):
    assert not is_share(text)


def test_the_first_line_that_differs_is_named():
    ours, theirs = {"a": ["1"], "b": ["2", "3"]}, {"a": ["1"], "b": ["2"]}
    assert first_difference(ours, ours) is None
    assert first_difference(ours, theirs) == ("3", "nothing")
    assert first_difference({}, {"a": ["1"]}) == ("nothing", "1")


def test_held_shares_follow_the_steps():
    held = HeldShares({"s": None}, [], 1)
    held.add([("s", 5, False, 2), ("other", 7, False, 3), ("other", 8, True, 1)])
    assert held == HeldShares({"s": 5}, [], 7)
    held.add([("s", 6, True, 1)])
    assert held == HeldShares({}, ["s"], 8)


def test_very_old_finished_shares_are_forgotten(monkeypatch):
    monkeypatch.setattr(job_values, "_MAX_FINISHED", 2)
    held = HeldShares(dict.fromkeys("abc"), [], 0)
    held.add([(share, None, True, 0) for share in "abc"])
    assert held.finished == ["b", "c"]


@pytest.mark.parametrize("facts", [[], 5, {"a": "b"}, {"a": [1]}, None])
def test_facts_that_are_no_lines_are_refused(facts):
    with pytest.raises(InvalidArgumentError, match="expected facts as a dict of lists of lines"):
        check_facts(facts)


@pytest.mark.parametrize(
    "held",
    [
        *([], 5, {"x": 1}, {"number": -1}, {"number": "1"}, {"number": True}, {"samples": 1 << 63}),
        *({"taken": [SHARE]}, {"taken": {"a": 1}}, {"finished": SHARE}, {"finished": [1]}),
    ],
)
def test_held_shares_of_another_form_are_refused(held):
    with pytest.raises(InvalidArgumentError, match="expected held shares and counts of a worker"):
        check_held(held)


def test_held_shares_are_accepted():
    check_held({"taken": {SHARE: [1]}, "finished": [SHARE], "number": 1, "samples": 2})
    check_facts({"a": ["b"]})


def saved():
    return json.loads(json.dumps(JobState(2).export()))


WRONG = {
    "names": [[1], "a"],
    "num_epochs": [None, -2],
    "epoch": ["a"],
    "queue": [[], {}, {"elements": ["a"]}],
    "returned": [[[1]], [["a", 1]], [[SHARE, 1, 2]], 5],
    "gone": [["a"]],
    "first_step": [1.5],
    "repeats": [-1],
    "alive": [["a"]],
    "numbers": [[[1, 2]], [[1, 2, "a"]]],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_save_with_a_wrong_field_is_refused_by_its_name(name):
    for value in WRONG[name]:
        with pytest.raises(InvalidArgumentError, match=f"got others or wrong values: .'{name}'"):
            SavedJob.of({**saved(), name: value})


def test_a_save_with_other_fields_is_refused():
    with pytest.raises(InvalidArgumentError, match="expected the fields of a job"):
        SavedJob.of({**saved(), "more": 1})
    with pytest.raises(InvalidArgumentError, match=r"wrong values: .'names', "):
        SavedJob.of({})
