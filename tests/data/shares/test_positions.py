"""A share that is opened at a position gives the rest; one worker reads what a pipeline gives."""

import itertools
import json

import pytest

from monolith import data
from tests.data.samples import memory, users, write_parquet
from tests.data.shares.test_division import write_arrow
from tests.data.test_resume import contents


class Numbered:
    """Batches with a position of their own; counts what is read."""

    def __init__(self, num_batches):
        self.batches, self.num_read = list(memory(num_batches).batch(1)), 0

    def resume(self, state):
        return self._Iterator(self, state["next"])

    def __iter__(self):
        return self._Iterator(self, 0)

    class _Iterator:
        def __init__(self, source, first):
            self._source, self._next = source, first

        def __iter__(self):
            return self

        def __next__(self):
            if self._next == len(self._source.batches):
                raise StopIteration
            self._next += 1
            self._source.num_read += 1
            return self._source.batches[self._next - 1]

        def state_dict(self):
            return {"next": self._next}


def make_sources(folder):
    files = write_parquet(folder, 3, num_samples=33, row_group_size=7)
    pipeline = data.parquet(files).shuffle_files(1).interleave(2)
    return {
        "record_batches": data.arrow(write_arrow(folder, 2, 33, 7)).shuffle(5).batch(3),
        "ranges": pipeline.shuffle(5).batch(3),
        "prefetched": pipeline.sample(half, reads=["user"]).repeat(3).batch(2).prefetch(2),
        "strides": pipeline.shuffle(8).take(50).repeat(3).batch(4),
        "memory": memory(31).shuffle(9).repeat(2).batch(3).prefetch(1),
        "list": list(memory(20).batch(3)),
        "resumable": Numbered(9),
    }


def half(block, draws):
    return block.filter(draws.uniform(block.num_rows, 5) < 0.5)


NAMES = ["record_batches", "ranges", "prefetched", "strides", "memory", "list", "resumable"]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_position_gives_the_rest_of_a_share(tmp_path, name, workers, monkeypatch):
    monkeypatch.setattr("monolith.data.files.parquet._BLOCK", 4)
    shares = data.split_source(make_sources(tmp_path)[name], workers)
    epoch = 0 if shares.num_epochs == 1 else 1
    for share in shares.names(epoch):
        whole, positions = [], []
        with shares.open(share, epoch) as batches:
            positions.append(json.dumps(batches.state_dict()))
            for batch in batches:
                whole += contents([batch])
                positions.append(json.dumps(batches.state_dict()))
        for number, position in enumerate(positions):
            with shares.open(share, epoch, json.loads(position)) as rest:
                assert contents(rest) == whole[number:]


@pytest.mark.parametrize("name", NAMES)
def test_one_worker_gets_the_whole_source(tmp_path, name):
    source = make_sources(tmp_path)[name]
    shares = data.split_source(source, 1)
    (share,) = shares.names()
    assert shares.num_epochs == 1
    with shares.open(share) as batches:
        assert contents(batches) == contents(source)


def test_the_position_of_one_worker_is_that_of_the_pipeline(tmp_path):
    source = make_sources(tmp_path)["prefetched"]
    shares = data.split_source(source, 1)
    batches = shares.open(*shares.names())
    list(itertools.islice(batches, 3))
    assert contents(source.resume(batches.state_dict())) == contents(batches)


def test_one_worker_may_read_a_generator():
    shares = data.split_source((batch for batch in memory(6).batch(2)), 1)
    assert users(shares.open(*shares.names())) == [*range(6)]


def test_a_source_with_positions_is_not_read_again():
    source = Numbered(10)
    shares = data.split_source(source, 2)
    batches = shares.open(shares.names()[1])
    assert users(itertools.islice(batches, 4)) == [1, 3, 5, 7]
    position, source.num_read = batches.state_dict(), 0
    assert position == {"batches": 8, "source": {"next": 8}}
    assert users(shares.open(shares.names()[1], position=position)) == [9]
    assert source.num_read == 2


def test_the_position_of_a_range_is_small(tmp_path):
    shares = data.split_source(make_sources(tmp_path)["ranges"], 2)
    batches = shares.open(shares.names()[0])
    next(batches)
    assert len(json.dumps(batches.state_dict())) < 1000


def test_the_progress_of_a_range_ends_with_it(tmp_path):
    shares = data.split_source(data.parquet(write_parquet(tmp_path, 1, 40, 10)).batch(5), 2)
    with shares.open(shares.names()[2]) as batches:
        progress = [batches.progress for _ in batches]
    size = (tmp_path / "part-0.parquet").stat().st_size
    assert progress == [(size // 2, size), (size, size)]


def test_a_closed_share_of_a_pipeline_has_closed_its_files(tmp_path):
    shares = data.split_source(make_sources(tmp_path)["prefetched"], 2)
    batches = shares.open(shares.names()[0])
    next(batches)
    batches.close()
    with pytest.raises(ValueError, match="expected an open iteration"):
        next(batches)


def test_close_ends_the_iteration_of_an_iterable():
    source = memory(6).batch(1)

    class Opened:
        def __iter__(self):
            self.batches = iter(source)
            return self.batches

    opened = Opened()
    shares = data.split_source(opened, 2)
    with shares.open(shares.names()[0]) as batches:
        assert users([next(batches)]) == [0]
    with pytest.raises(ValueError, match=r"\[Batches\] expected an open iteration"):
        next(opened.batches)
    with pytest.raises(ValueError, match=r"\[Shares\] expected an open iteration, got a closed"):
        next(batches)
