"""The parts of the measurements of ranks that need no processes."""

import pytest

from benchmarks.harness import BenchmarkError
from benchmarks.rank_costs import TERMS, Point, amounts, parts_of, sent_bytes
from benchmarks.ranks import check


def test_a_rank_alone_sends_nothing():
    alone = Point(1, 512, 16, 100)
    assert set(sent_bytes(alone, 900.0).values()) == {0.0}
    found = amounts(alone, 900.0)
    assert found.keys() == set(TERMS)
    assert not any(found[term] for term in TERMS if term.startswith("sent"))


def test_a_rank_sends_the_keys_and_gradients_of_the_other_ranks_rows_and_the_rows_of_its_own():
    assert sent_bytes(Point(4, 512, 16, 100), 800.0) == {
        "key": 8 * 600,
        "row": 4 * 16 * 600,
        "gradient": 4 * 16 * 600,
    }


def test_parts_of_a_step_add_up_to_its_processor_time():
    answer = {"cpu_seconds": 2.0, "parts": {"thread": 1.5, "keys": 0.25, "tables": 0.5}}
    assert parts_of(answer) == {"keys": 0.25, "tables": 0.5, "rest": 0.75, "transport": 0.5}


def test_a_peer_that_trains_another_model_is_refused():
    check([{"loss": 0.3841}], [{"loss": 0.3838}])
    with pytest.raises(BenchmarkError, match="expected equal losses of ours and torchrec"):
        check([{"loss": 0.3841}], [{"loss": 0.245}])
