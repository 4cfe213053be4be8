"""`JobSource` over a job of this process, with shares of lists."""

import pytest

from monolith import data
from monolith.cluster.job.job_state import JobState
from monolith.cluster.job.job_values import Taken, share_of
from monolith.data.cursor import WaitEndedError
from monolith.data.shares.share_names import WholeShare
from monolith.train.roles.job_source import JobPosition, JobSource, job_source, source_position
from tests.data.samples import users
from tests.data.stream.folders import add
from tests.time_limits import at_once


class Job:
    """A worker's part in a job, without servers.

    Attributes:
        lost: Shares that another worker has.
        finished: Shares that ended without a step.
    """

    is_chief = True
    on_wait = None

    def __init__(self, state=None, worker=0, num_workers=1):
        self.state = JobState(num_workers) if state is None else state
        self.worker, self.num_workers = worker, num_workers
        self.state.join(worker, worker, [worker], {}, {})
        self.lost, self.finished = set(), []
        self.number = self.num_takes = 0

    def offer(self, names, num_epochs):
        self.state.offer(names, num_epochs)

    def take(self, finished=()):
        self.finished += finished
        self.num_takes += 1
        assert self.num_takes < 20, "the source waits for ever"
        return self.state.take(self.worker, self.worker, self.number, finished)

    def has(self, share):
        return share not in self.lost

    def step(self, position):
        self.number += 1
        self.state.note_step(self.worker, self.worker, self.number, [position])


class Batches:
    def __init__(self, values, position):
        self.values, self.next, self.is_closed = values, position or 0, False

    def __next__(self):
        if self.next == len(self.values):
            raise StopIteration
        self.next += 1
        return self.values[self.next - 1]

    def state_dict(self):
        return self.next

    def close(self):
        self.is_closed = True


class Shares:
    """Shares by name, each a list of batches.

    Attributes:
        opened: Batches of each opened share.
    """

    def __init__(self, **shares):
        self.shares, self.opened = shares, []

    def open(self, name, epoch, position):
        self.opened.append(Batches(self.shares[name], position))
        return self.opened[-1]


def source(epochs=1, num_workers=1, **shares):
    job = Job(num_workers=num_workers)
    job.offer(list(shares), epochs)
    return JobSource(job, Shares(**shares)), job


def read(source):
    """(batch, position) of a source; each batch is a step."""
    found = []
    for batch in source:
        position = source.state_dict()
        found.append((batch, position))
        source._job.step(position)
    return found


def test_batches_come_with_their_share_and_position():
    reader, _ = source(a=["x", "yy"])
    assert reader.state_dict() is None
    share = share_of(0, "a")
    assert read(reader) == [
        ("x", JobPosition(share, 1, False, 1)),
        ("yy", JobPosition(share, 2, True, 2)),
    ]


def test_shares_of_all_epochs_follow_each_other():
    reader, job = source(epochs=2, a=["x"], b=["y"])
    assert [batch for batch, _ in read(reader)] == ["x", "y", "x", "y"]
    assert all(batches.is_closed for batches in reader._shares.opened)
    assert job.state.counts().steps == 4


def test_shares_without_a_batch_end():
    reader, job = source(a=[], b=["x"], c=[])
    assert [batch for batch, _ in read(reader)] == ["x"]
    assert job.finished == [share_of(0, "a"), share_of(0, "c")]


def test_a_share_that_was_given_back_at_its_end_ends():
    reader, job = source(num_workers=2, a=["x", "y"])
    other = Job(job.state, 1, 2)
    share = other.take().share
    other.step((share, 2, False, 1))
    job.state.leave(1, 1, 1)
    assert read(reader) == []
    assert job.finished == [share]


def test_a_lost_share_is_dropped_and_has_not_ended():
    reader, job = source(a=["x", "y", "z"], b=["w"])
    first = next(reader)
    job.lost.add(share_of(0, "a"))
    assert (first, next(reader)) == ("x", "y")  # was read ahead
    assert reader.state_dict() == JobPosition(share_of(0, "a"), 2, False, 1)
    assert reader._shares.opened[0].is_closed
    assert next(reader) == "w"
    assert job.finished == []


def test_a_source_that_is_stopped_gives_what_it_has_read():
    reader, _ = source(a=["x"], b=["y"])
    assert next(reader) == "x"
    reader.stop()
    assert list(reader) == []


def test_a_source_waits_for_shares_of_others(monkeypatch):
    reader, job = source(num_workers=2, a=["x"])
    other = Job(job.state, 1, 2)
    other.take()
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            job.state.leave(1, 1, 0)

    monkeypatch.setattr("monolith.train.roles.job_source.time.sleep", sleep)
    assert [batch for batch, _ in read(reader)] == ["x"]
    assert len(waits) == 3


def test_a_source_that_waits_calls_what_the_job_asks_for():
    reader, job = source(num_workers=2, a=["x"])
    other = Job(job.state, 1, 2)
    other.take()
    job.on_wait = lambda: job.state.leave(1, 1, 0)
    assert [batch for batch, _ in read(reader)] == ["x"]


def test_the_position_of_a_local_run_is_that_of_a_job_of_one_worker():
    reader, _ = source(epochs=2, a=["x", "y", "z"])
    reader.resume(2)
    assert [batch for batch, _ in read(reader)] == ["z", "x", "y", "z"]


def test_the_position_of_a_share_counts_more_than_that_of_a_local_run():
    reader, job = source(a=["x", "y", "z"])
    monkeypatched = Taken("share", share_of(0, "a"), 1)
    job.take = lambda finished=(): monkeypatched
    reader.resume(2)
    assert next(reader) == "y"


def test_several_workers_do_not_take_the_position_of_a_local_run():
    reader, _ = source(num_workers=2, a=["x", "y"])
    assert next(reader.resume(1)) == "x"


def test_close_closes_the_share():
    reader, _ = source(a=["x", "y"])
    next(reader)
    for _ in range(2):
        reader.close()
    assert reader._shares.opened[0].is_closed


WHOLE = share_of(0, str(WholeShare()))


@pytest.mark.parametrize(
    ("position", "is_alone", "expected"),
    [
        (JobPosition(WHOLE, 3, False, 1), True, 3),
        (JobPosition(WHOLE, 3, False, 1), False, None),
        (JobPosition(share_of(0, "a"), 3, False, 1), True, None),
        ({"batches": 1}, False, {"batches": 1}),
    ],
)
def test_a_checkpoint_has_the_position_in_the_whole_source(position, is_alone, expected):
    assert source_position(position, is_alone=is_alone) == expected


@pytest.mark.parametrize("is_chief", [True, False])
def test_only_the_chief_offers_shares(is_chief):
    job = Job()
    job.is_chief = is_chief
    reader = job_source(job, [["x"], ["y"]])
    assert job.state.is_offered == is_chief
    if is_chief:
        assert [batch for batch, _ in read(reader)] == [["x"], ["y"]]


def test_a_batch_of_a_stream_does_not_wait_for_the_next_one(tmp_path):
    add(tmp_path, "a.jsonl", [7])
    stream = data.stream.tail(tmp_path, columns=data.Columns(["user"])).batch(4, seconds=0.01)
    job = Job()
    reader = job_source(job, stream)
    with at_once():
        assert users([next(reader)]) == [7]
    assert not reader.state_dict().is_last

    def end():
        raise WaitEndedError

    reader.on_wait = end
    with pytest.raises(StopIteration):
        next(reader)
    assert reader.is_interrupted
    assert job.finished == []  # the run is to end, and not the share
    reader.close()
