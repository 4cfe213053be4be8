"""Flags and texts of a job."""

import pytest

from monolith.cluster.job import shared_state
from monolith.cluster.job.shared_state import LocalSharedState
from monolith.errors import InvalidArgumentError


def test_flags_and_texts_are_kept_by_name():
    shared = LocalSharedState()
    shared.set_flag("a", 2, 1, True)
    shared.set_text("t", "x")
    assert (shared.flags("a", 2), shared.flags("b", 1)) == ([False, True], [False])
    assert (shared.text("t"), shared.text("u")) == ("x", "")


def test_what_is_read_is_a_copy():
    shared = LocalSharedState()
    shared.set_flag("a", 1, 0, False)
    shared.flags("a", 1)[0] = True
    assert shared.flags("a", 1) == [False]


def test_an_index_beyond_the_vector_is_refused_and_makes_none():
    shared = LocalSharedState()
    with pytest.raises(InvalidArgumentError, match=r"an index in \[0, 2\), got 2 \(flags 'a'\)"):
        shared.set_flag("a", 2, 2, True)


def test_a_vector_has_one_size():
    shared = LocalSharedState()
    shared.set_flag("a", 2, 0, True)
    with pytest.raises(InvalidArgumentError, match="expected 2 flags, as the vector was made"):
        shared.flags("a", 3)


def test_reading_flags_takes_no_memory():
    shared = LocalSharedState()
    shared.flags("a", 1 << 20)
    assert shared.flags("a", 3) == [False] * 3


def test_flags_and_texts_have_limits(monkeypatch):
    monkeypatch.setattr(shared_state, "_MAX_FLAGS", 3)
    monkeypatch.setattr(shared_state, "_MAX_CHARACTERS", 8)
    shared = LocalSharedState()
    shared.set_flag("a", 2, 0, True)
    shared.set_flag("a", 2, 1, True)
    with pytest.raises(InvalidArgumentError, match="at most 3 flags in all vectors, got 4"):
        shared.set_flag("b", 2, 0, True)
    shared.set_text("a", "x" * 8)
    with pytest.raises(InvalidArgumentError, match="at most 8 characters in all texts, got 10"):
        shared.set_text("b", "x")
    shared.set_text("a", "")
    shared.set_text("b", "x")
