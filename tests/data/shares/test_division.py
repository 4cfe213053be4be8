"""All shares of an epoch together have each sample once."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith import data
from tests.data.samples import memory, num_bytes_read, table, users, write_parquet


def write_arrow(folder, num_files=1, num_samples=40, batch_size=10):
    for i in range(num_files):
        rows = table(num_samples, i * num_samples)
        with pa.ipc.new_file(folder / f"part-{i}.arrow", rows.schema) as sink:
            sink.write_table(rows, max_chunksize=batch_size)
    return f"{folder}/*.arrow"


def is_even(block):
    return np.asarray(block["user"]) % 2 == 0


def users_of(shares, epoch=0):
    """The users of each share."""
    found = []
    for name in shares.names(epoch):
        with shares.open(name, epoch) as batches:
            found.append(users(batches))
    return found


def kinds(shares):
    """The keys of each name that tell its kind."""
    return [",".join(json.loads(name)) for name in shares.names()]


def rows_of(shares):
    return [json.loads(name)["rows"] for name in shares.names()]


STAGES = {
    "shuffle_files": lambda s: s.shuffle_files(3),
    "interleave": lambda s: s.interleave(2),
    "filter": lambda s: s.filter(is_even),
    "shuffle": lambda s: s.shuffle(9, seed=1),
    "cross": lambda s: s.cross("both", ["user", "items"]),
    "repeat": lambda s: s.repeat(2),
    "batch": lambda s: s.batch(5),
    "select": lambda s: s.select("user", "label"),
    "prefetch": lambda s: s.prefetch(2),
    "take": lambda s: s.take(37),
    "cache": lambda s: s.cache(),
    "shard": lambda s: s.shard(1, 2),
}


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@settings(max_examples=40, deadline=None)
@given(
    num_files=st.integers(1, 6),
    num_samples=st.integers(2, 40),
    part=st.integers(1, 40),
    workers=st.integers(2, 4),
    stages=st.sets(st.sampled_from([*STAGES])),
)
def test_each_sample_is_in_one_share(
    tmp_path_factory, kind, num_files, num_samples, part, workers, stages
):
    folder = tmp_path_factory.mktemp("files")
    write = write_parquet if kind == "parquet" else write_arrow
    source = getattr(data, kind)(write(folder, num_files, num_samples, part))
    for name in STAGES:  # in this order, in which all of them are allowed
        source = STAGES[name](source) if name in stages else source
    shares = data.split_source(source, workers)
    epochs = range(shares.num_epochs)
    found = itertools.chain.from_iterable(itertools.chain(*users_of(shares, e)) for e in epochs)
    assert sorted(found) == sorted(users(source))


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_that_needs_the_whole_pass_gives_strides(tmp_path, name):
    source = STAGES[name](data.parquet(write_parquet(tmp_path, num_files=8)))
    has_strides = name in ("take", "cache", "shard")
    assert kinds(data.split_source(source, 2)) == (
        ["batches,of,stream"] * 2 if has_strides else ["file,size"] * 8
    )


def test_a_filter_by_numbers_of_samples_gives_strides(tmp_path):
    source = data.parquet(write_parquet(tmp_path, num_files=8))
    keeps = lambda block, first: np.arange(first, first + block.num_rows) % 3 == 0  # noqa: E731
    source = source.filter_numbered(keeps, "thirds").repeat(2)
    assert kinds(data.split_source(source, 2)) == ["batches,of,stream"] * 2


def test_few_files_are_cut_along_their_row_groups(tmp_path):
    source = data.parquet(write_parquet(tmp_path, 2, num_samples=50, row_group_size=5)).batch(4)
    rows = [(0, 10), (10, 25), (25, 35), (35, 50)]
    got = rows_of(data.split_source(source, 2))
    assert [(first, end) for first, end, _ in got] == rows * 2
    assert [part for _, _, part in got] == [0, 2, 5, 7] * 2


def test_a_share_gives_its_rows_in_order(tmp_path):
    source = data.parquet(write_parquet(tmp_path, 1, num_samples=40, row_group_size=10)).batch(4)
    assert users_of(data.split_source(source, 2)) == [
        [*range(first, first + 10)] for first in (0, 10, 20, 30)
    ]


def test_ranges_of_an_arrow_file_are_record_batches(tmp_path):
    source = data.arrow(write_arrow(tmp_path, num_samples=44)).batch(4)
    assert rows_of(data.split_source(source, 2)) == [
        [0, 10, 0], [10, 20, 1], [20, 30, 2], [30, 40, 3], [40, 44, 4],
    ]  # fmt: skip


def test_a_range_has_the_samples_of_a_batch(tmp_path):
    source = data.parquet(write_parquet(tmp_path, 1, num_samples=60, row_group_size=1))
    shares = data.split_source(source.shuffle(7).batch(20), 2)
    assert [(first, end) for first, end, _ in rows_of(shares)] == [(0, 20), (20, 40), (40, 60)]


def test_files_are_not_cut_if_there_are_enough(tmp_path):
    source = data.parquet(write_parquet(tmp_path, 8, row_group_size=5)).batch(4)
    assert kinds(data.split_source(source, 2)) == ["file,size"] * 8
    assert "file,size,rows" in kinds(data.split_source(source, 3))


def test_a_file_that_cannot_be_cut_gives_strides(tmp_path):
    source = data.parquet(write_parquet(tmp_path, 1, row_group_size=50)).batch(4)
    assert kinds(data.split_source(source, 2)) == ["batches,of,stream"] * 2
    (tmp_path / "a.csv").write_text("user\n1\n2\n")
    assert kinds(data.split_source(data.csv(tmp_path / "a.csv"), 2)) == ["batches,of,stream"] * 2


def test_a_stream_of_arrow_is_not_cut(tmp_path):
    for i in range(2):
        with pa.ipc.new_stream(tmp_path / f"{i}.arrow", table().schema) as sink:
            sink.write_table(table(20, 20 * i), max_chunksize=5)
    shares = data.split_source(data.arrow(f"{tmp_path}/*.arrow").batch(4), 2)
    assert users_of(shares) == [[*range(20)], [*range(20, 40)]]
    assert kinds(shares) == ["file,size"] * 2


def test_a_file_that_is_listed_twice_is_read_twice(tmp_path):
    path = write_parquet(tmp_path, 1, num_samples=6)
    shares = data.split_source(data.parquet([path, path]).batch(6), 2)
    assert users_of(shares) == [[*range(6)]] * 2
    assert len(set(shares.names())) == 2


def test_files_without_samples_are_shares_without_batches(tmp_path):
    for i, size in enumerate((0, 7, 0)):
        pq.write_table(table(size), tmp_path / f"{i}.parquet")
    assert users_of(data.split_source(data.parquet(tmp_path).batch(4), 2)) == [[], [*range(7)], []]


def test_strides_of_a_pipeline_have_every_nth_batch():
    shares = data.split_source(memory(10).batch(2), 3)
    assert users_of(shares) == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5]]


def test_strides_of_a_pipeline_without_batches_have_every_nth_block():
    source = memory(10).map(lambda block: block)
    assert users_of(data.split_source(source, 2)) == [[*range(10)], []]


def test_strides_of_a_list_have_every_nth_batch():
    shares = data.split_source(list(memory(10).batch(2)), 3)
    assert users_of(shares) == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5]]


def test_a_repetition_is_taken_out():
    def num_epochs(source, workers=2):
        return data.split_source(source, workers).num_epochs

    assert num_epochs(memory().batch(2)) == 1
    assert num_epochs(memory().repeat(3).repeat(2).batch(2)) == 6
    assert num_epochs(memory().repeat(3).repeat().batch(2)) is None
    assert num_epochs(memory().repeat().take(30).batch(2)) == 1
    assert num_epochs(memory().repeat(3).batch(2), workers=1) == 1


def test_a_repetition_below_a_stage_that_counts_samples_stays():
    shares = data.split_source(memory(4).repeat().take(9).batch(3), 2)
    assert users_of(shares) == [[0, 1, 2, 2, 3, 0], [3, 0, 1]]


def test_epochs_and_files_have_orders_of_their_own(tmp_path):
    for i in range(2):
        pq.write_table(table(50), tmp_path / f"{i}.parquet")
    shares = data.split_source(data.parquet(tmp_path).shuffle(50).repeat().batch(7), 2)
    orders = [*users_of(shares, 0), *users_of(shares, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert users_of(shares, 1) == orders[2:]


def test_strides_of_an_epoch_see_the_same_order():
    shares = data.split_source(memory(20).shuffle(20).repeat(2).batch(3), 2)
    epochs = [users_of(shares, epoch) for epoch in range(2)]
    assert [sorted(a + b) for a, b in epochs] == [[*range(20)]] * 2
    assert epochs[0] != epochs[1]


def test_shuffled_files_are_handed_out_in_the_order_of_the_pipeline(tmp_path):
    source = data.parquet(write_parquet(tmp_path, 8, num_samples=3)).shuffle_files(4).repeat(2)
    shares = data.split_source(source.batch(3), 2)
    orders = [users_of(shares, epoch) for epoch in range(2)]
    assert [user for order in orders for share in order for user in share] == users(source)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_batches_end_with_their_share(tmp_path, is_dropped):
    source = data.parquet(write_parquet(tmp_path, 8, num_samples=5))
    shares = data.split_source(source.batch(3, drop_remainder=is_dropped), 2)
    sizes = [len(batch) for name in shares.names() for batch in shares.open(name)]
    assert sizes == ([3] if is_dropped else [3, 2]) * 8


def test_columns_that_are_left_out_stay_left_out(tmp_path):
    source = data.parquet(write_parquet(tmp_path, 1)).batch(4).select("user")
    shares = data.split_source(source, 2)
    batch = next(shares.open(shares.names()[0]))
    assert (list(batch.features), batch.labels) == (["user"], {})


def test_names_are_the_same_in_every_process(tmp_path):
    path = write_parquet(tmp_path, 3, row_group_size=5)
    make = lambda: data.parquet(path).shuffle_files(1).shuffle(9).repeat().batch(4)  # noqa: E731
    first, second = (data.split_source(make(), 2) for _ in range(2))
    assert first.names(5) == second.names(5)
    strides = [data.split_source(make().take(30), 2).names() for _ in range(2)]
    assert strides[0] == strides[1]


def test_shares_of_another_number_of_workers_can_be_opened(tmp_path):
    source = data.parquet(write_parquet(tmp_path, 2, row_group_size=5)).batch(4)
    strides, files = source.take(90), source
    for one in (strides, files):
        old = data.split_source(one, 3)
        for workers in (1, 2, 5):
            new = data.split_source(one, workers)
            got = [users(new.open(name)) for name in old.names()]
            assert got == users_of(old)
    whole = data.split_source(source, 1).names()
    assert users(data.split_source(source, 2).open(*whole)) == users(source)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_what_lies_outside_a_range_is_not_read(tmp_path, kind, depth):
    write = write_parquet if kind == "parquet" else write_arrow
    source = getattr(data, kind)(write(tmp_path, 1, 80_000, 10_000)).batch(1_000)
    shares = data.split_source(source.prefetch(depth) if depth else source, 2)
    names, size = shares.names(), (tmp_path / f"part-0.{kind}").stat().st_size
    first = json.loads(names[3])["rows"][0]
    users(shares.open(names[3]))  # loads what a first read needs
    before = num_bytes_read()
    assert users(shares.open(names[3])) == [*range(first, first + 10_000)]
    assert size / 10 < num_bytes_read() - before < size / 5
    position = {}
    with shares.open(names[3]) as batches:
        next(batches)
        position = batches.state_dict()
    before = num_bytes_read()
    users(shares.open(names[3], position=position))
    assert num_bytes_read() - before < size / 5
