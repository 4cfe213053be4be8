"""The batches of each rank, and what is left of them for other numbers of ranks."""

import json
import logging

import pytest

from monolith import data
from monolith.cluster.data_service import ServiceSource
from monolith.cluster.job.job_values import SavedJob, share_of
from monolith.data import split_source
from monolith.train.driver import Run
from monolith.train.ranks.rank_source import RankSource, is_of_ranks, position_of_shares
from monolith.train.ranks.rank_sync import rank_source
from monolith.train.roles.job_source import position_of_job
from monolith.train.run_state import RunState


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


def test_shares_that_the_source_does_not_have_are_told_with_the_number_of_samples(caplog):
    position = position_of_shares([[(0, "worker 1 of 2", None)]], 2, 1)
    source = RankSource(pipeline(), 0, 1, num_trained=1500)
    with caplog.at_level(logging.WARNING):
        assert sorted(users(source.resume(position))) == list(range(24))
    assert "cannot be used, as the source has no share worker 1 of 2" in caplog.text
    assert "and 1,500 samples that were trained before are trained once more" in caplog.text


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("epochs", [1, 2])
def test_ranks_go_on_with_the_shares_that_a_job_has_left(size, epochs):
    """The job has trained a batch of its first share, and its second share wholly."""
    shares = split_source(pipeline(48, epochs), 2)
    first, second, *rest = shares.names()
    batches = shares.open(first)
    trained = users([next(batches)]) + users(shares.open(second))
    waiting = [share_of(0, name) for name in rest]
    saved = SavedJob.begun(
        shares.names(), epochs, 0, [(share_of(0, first), batches.state_dict())], num_steps=0
    )._replace(queue={"elements": waiting, "offset": 0, "arr_size": len(waiting)})
    position = json.loads(json.dumps(position_of_job(saved, size)))
    sources = [RankSource(pipeline(48, epochs), rank, size) for rank in range(size)]
    found = flat([users(source.resume(position)) for source in sources])
    assert sorted(trained + found) == sorted(list(range(48)) * epochs)


def test_a_job_whose_data_was_not_opened_has_no_position():
    saved = SavedJob.begun([], 1, 0, [], num_steps=0)._replace(names=None)
    assert position_of_job(saved, 2) is None


def test_a_data_service_does_not_take_the_position_of_ranks(caplog):
    state = RunState(Run(global_step=3), None, {})
    state.position, state.num_before = position_of_shares([[]], 2, 1), None
    source = object.__new__(ServiceSource)
    assert rank_source(source, None, state) is source
    assert state.position is None
    assert "and its samples that were trained before are trained once more" in caplog.text
