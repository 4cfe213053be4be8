"""The batches of each rank, and what is left of them for other numbers of ranks."""

import json
import logging

import pytest

from monolith import data
from monolith.train.ranks.rank_source import RankSource, is_of_ranks
from monolith.train.roles.job_source import JobSource


def pipeline(num=24, epochs=1):
    samples = data.arrow_table({"user": list(range(num))})
    return (samples.repeat(epochs) if epochs > 1 else samples).batch(2)


def users(batches, limit=None):
    found = []
    for batch in batches:
        found += batch.features["user"].values.tolist()
        if limit is not None and len(found) >= 2 * limit:
            break
    return found


def flat(lists):
    return [user for users in lists for user in users]


def begun(size, limit, epochs=1, position=None):
    """What each rank reads of some batches, and the position of all."""
    sources = [RankSource(pipeline(epochs=epochs), rank, size) for rank in range(size)]
    iterators = [iter(s) if position is None else s.resume(position) for s in sources]
    found = [users(iterator, limit) for iterator in iterators]
    left = [s.left_of(i.state_dict()) for s, i in zip(sources, iterators, strict=True)]
    return found, json.loads(json.dumps(sources[0].joined(left)))


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_sample_is_read_by_one_rank(size, epochs):
    found, _ = begun(size, None, epochs)
    assert sorted(flat(found)) == sorted(list(range(24)) * epochs)


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 1), (1, 4), (4, 2)])
def test_another_number_of_ranks_reads_what_is_left(before, after):
    first, position = begun(before, 2)
    assert is_of_ranks(position)
    second, _ = begun(after, None, position=position)
    assert sorted(flat(first + second)) == list(range(24))


def test_a_position_is_taken_several_times():
    first, position = begun(1, 3)
    second, position = begun(4, 1, position=position)
    third, _ = begun(2, None, position=position)
    assert sorted(flat(first + second + third)) == list(range(24))


def test_a_run_in_one_process_is_gone_on_with():
    batches = iter(pipeline())
    first = users(batches, 3)
    found, _ = begun(2, None, position=batches.state_dict())
    assert sorted(first + flat(found)) == list(range(24))


def test_a_job_with_servers_reads_anew_after_ranks(caplog):
    job = type("Job", (), {"num_workers": 1})()
    with caplog.at_level(logging.WARNING):
        JobSource(job, None).resume({"kind": "ranks"})
    assert "positions of synchronous ranks are no shares of a job" in caplog.text
