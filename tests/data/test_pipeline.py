import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from monolith import data
from monolith.data import Columns
from tests.data.samples import memory, users, write_parquet


def lengths(source):
    return [len(batch) for batch in source]


def test_batches_have_the_asked_size_and_the_rest():
    assert lengths(memory(10).batch(4)) == [4, 4, 2]


def test_the_rest_can_be_dropped():
    assert lengths(memory(10).batch(4, drop_remainder=True)) == [4, 4]


def test_batches_go_over_the_borders_of_files(tmp_path):
    source = data.parquet(write_parquet(tmp_path)).batch(70)
    assert lengths(source) == [70, 70, 60]
    assert users(source) == list(range(200))


def test_a_pipeline_can_be_iterated_twice():
    source = memory().shuffle(5).batch(3)
    assert users(source) == users(source)


def test_a_shuffle_keeps_every_sample_in_its_window():
    got = users(memory(20).shuffle(8).batch(8))
    assert [sorted(got[i : i + 8]) for i in (0, 8)] == [list(range(8)), list(range(8, 16))]
    assert sorted(got) == list(range(20))
    assert got != list(range(20))


def test_a_shuffle_keeps_the_columns_of_a_sample_together():
    for batch in memory(20).shuffle(20).batch(5):
        assert (batch.dense["price"] * 4 == batch.features["user"].values).all()


def test_shuffles_of_two_seeds_differ():
    assert users(memory(20).shuffle(20, seed=1)) != users(memory(20).shuffle(20, seed=2))


def test_windows_are_shuffled_differently():
    got = users(memory(40).shuffle(20))
    assert [user - 20 for user in got[20:]] != got[:20]


def test_epochs_are_shuffled_differently():
    got = users(memory(20).shuffle(20).repeat(2))
    assert sorted(got[:20]) == sorted(got[20:]) == list(range(20))
    assert got[:20] != got[20:]


def test_files_are_shuffled_and_differently_in_each_epoch(tmp_path):
    paths = write_parquet(tmp_path, num_files=8, num_samples=2)
    got = users(data.parquet(paths).shuffle_files(seed=3).repeat(2))
    assert sorted(got[:16]) == sorted(got[16:]) == list(range(16))
    assert got[:16] != got[16:]
    assert all(b == a + 1 for a, b in zip(got[::2], got[1::2], strict=True))


def test_interleaved_files_take_turns(tmp_path):
    paths = write_parquet(tmp_path, num_files=3, num_samples=4, row_group_size=2)
    got = users(data.parquet(paths).interleave(2))
    assert got == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11]


def test_shards_of_files_are_disjoint_and_complete(tmp_path):
    source = data.parquet(write_parquet(tmp_path, num_files=5, num_samples=10))
    parts = [users(source.shard(i, 2)) for i in range(2)]
    assert parts[1] == [*range(10, 20), *range(30, 40)]
    assert sorted(parts[0] + parts[1]) == list(range(50))


def test_with_fewer_files_than_workers_samples_are_shared_out(tmp_path):
    source = data.parquet(write_parquet(tmp_path, num_files=1, num_samples=10))
    assert users(source.shard(1, 3)) == [1, 4, 7]


def test_samples_in_memory_are_shared_out():
    assert [users(memory(7).shard(i, 3)) for i in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]


def test_map_changes_blocks():
    def double(block):
        return block.set_column(0, "user", pc.multiply(block["user"], 2))

    assert users(memory(4).map(double)) == [0, 2, 4, 6]


def test_map_may_leave_out_samples():
    assert users(memory(4).map(lambda block: block.slice(0, 0))) == []


def test_filter_keeps_what_is_true():
    assert users(memory(6).filter(lambda block: np.asarray(block["user"]) % 3 == 0)) == [0, 3]


def test_filter_counts():
    source = memory(6).filter(lambda block: pc.less(block["user"], 2))
    users(source)
    assert source.stage.counts == {"kept": 2, "left_out": 4}


def test_filter_is_told_the_numbers_of_samples():
    seen = []

    def keeps(block, first):
        seen.append((first, block.num_rows))
        return np.ones(block.num_rows, np.bool_)

    users(memory(10).batch(4).filter_numbered(keeps, "seen"))
    assert seen == [(0, 4), (4, 4), (8, 2)]


@pytest.mark.parametrize("answer", [np.ones(6), np.ones(5, np.bool_)])
def test_a_filter_that_gives_no_booleans_is_refused(answer):
    with pytest.raises(ValueError, match=r"\[Pipeline.filter\] expected 6 booleans, got shape"):
        users(memory(6).filter(lambda block: answer))


def test_take_ends_every_epoch():
    assert users(memory(10).take(3).repeat(2).batch(4)) == [0, 1, 2, 0, 1, 2]


def test_repeat_without_a_number_never_ends():
    batches = iter(memory(3).repeat().batch(2))
    assert users(itertools.islice(batches, 4)) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_repeat_of_nothing_ends():
    assert users(memory(3).filter(lambda block: pc.less(block["user"], 0)).repeat()) == []


def test_a_repeat_of_repeats_counts_epochs_on():
    orders = users(memory(20).shuffle(20).repeat(2).repeat(2))
    assert len({tuple(orders[i : i + 20]) for i in range(0, 80, 20)}) == 4


def test_a_cache_reads_the_source_once():
    reads = []

    def read(block):
        reads.append(block.num_rows)
        return block

    source = memory(10).map(read).cache().shuffle(10).repeat(3)
    assert len(users(source)) == 30
    assert reads == [10]


def test_a_cache_whose_first_pass_was_not_whole_is_filled_for_the_next():
    source = memory(10).batch(5).cache().take(5).repeat(2)
    assert users(source) == [0, 1, 2, 3, 4] * 2


def test_cross_adds_a_feature():
    source = memory(4).cross("both", ["user", "items"]).batch(4)
    (batch,) = source
    assert batch.features["both"].lengths.tolist() == [0, 1, 2, 0]
    assert len(set(batch.features["both"].values.tolist())) == 3


def test_cross_of_unknown_features_is_refused():
    with pytest.raises(ValueError, match=r"expected features, got 'price' \(features: \['user'"):
        memory().cross("both", ["user", "price"])


def test_cross_of_one_feature_is_refused():
    with pytest.raises(ValueError, match="expected at least 2 features, got 1"):
        memory().cross("both", ["user"])


@pytest.mark.parametrize("method", ["shuffle_files", "interleave"])
def test_methods_of_files_are_refused_without_files(method):
    with pytest.raises(ValueError, match=rf"\[Pipeline.{method}\] expected a source of files"):
        getattr(memory(), method)(2)


@pytest.mark.parametrize("method", ["interleave", "shuffle", "take", "repeat", "batch", "prefetch"])
def test_numbers_below_one_are_refused(tmp_path, method):
    source = data.parquet(write_parquet(tmp_path, 1))
    with pytest.raises(ValueError, match=rf"\[Pipeline.{method}\] expected at least 1 of .*got 0"):
        getattr(source, method)(0)


@pytest.mark.parametrize("index", [-1, 3])
def test_a_shard_out_of_range_is_refused(index):
    with pytest.raises(ValueError, match=rf"expected an index from 0 to 2, got {index}"):
        memory().shard(index, 3)


def test_blocks_with_single_ids_and_with_lists_become_one_batch(tmp_path):
    for i, ids in enumerate([[1, 2], [None, 4]]):
        pq.write_table(pa.table({"user": pa.array(ids, pa.int64())}), tmp_path / f"{i}.parquet")
    (batch,) = data.parquet(tmp_path).batch(4)
    assert batch.features["user"].to_lists() == [[1], [2], [], [4]]


def test_progress_counts_bytes_of_files(tmp_path):
    paths = write_parquet(tmp_path, num_files=2, num_samples=40, row_group_size=20)
    batches = iter(data.parquet(paths).batch(20))
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert batches.progress == (0, total)
    next(batches)
    assert 0 < batches.progress[0] < total
    list(batches)
    assert batches.progress == (total, total)


def test_progress_does_not_count_samples_that_wait():
    batches = iter(memory(10).shuffle(8).batch(3))
    seen = [batches.progress[0] for _ in batches]
    assert seen == [3, 6, 9, 10]


@pytest.mark.parametrize(("epochs", "expected"), [(3, (20, 30)), (None, (20, 0))])
def test_progress_counts_every_pass(epochs, expected):
    batches = iter(memory(10).repeat(epochs).batch(10))
    for _ in range(2):
        next(batches)
    assert batches.progress == expected


def test_progress_counts_samples_in_memory():
    batches = iter(memory(10).batch(4))
    next(batches)
    assert batches.progress == (4, 10)


def test_columns_of_a_pipeline_are_those_of_its_batches():
    source = memory().cross("both", ["user", "items"])
    (batch,) = source
    assert isinstance(source.columns, Columns)
    assert list(batch.features) == [each.name for each in source.columns.id_columns]


def test_a_closed_iteration_gives_no_more(tmp_path):
    source = data.parquet(write_parquet(tmp_path)).batch(7)
    for each in (source, source.prefetch(2)):
        with iter(each) as batches:
            state = [next(batches), batches.state_dict()][1]
        with pytest.raises(ValueError, match="expected an open iteration, got a closed one"):
            next(batches)
        assert users(each.resume(batches.state_dict())) == users(each.resume(state))


def test_no_sample_is_lost_by_an_interrupt():
    interrupts = [6]

    def check(block):
        if interrupts and block["user"][0].as_py() >= interrupts[0]:
            interrupts.pop()
            raise KeyboardInterrupt
        return block

    batches = iter(memory(20).batch(3).map(check).batch(4))
    got = users(itertools.islice(batches, 1))
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert got + users(batches) == list(range(20))


def test_samples_left_out_are_reported_once_at_the_end(caplog):
    rows = {"user": [1, 2, 3], "price": [1.0, None, 3.0]}
    batches = iter(data.arrow_table(rows, on_error="skip").batch(2))
    assert [len(list(batches)), len(list(batches))] == [1, 0]
    (record,) = caplog.records
    assert "by reason: {\"expected a number in column 'price'\": 1}" in record.message


@pytest.mark.parametrize("rows", [[[1], [2, None]], [[None, 1], [2]], [[1], [2], [None]]])
def test_blocks_with_and_without_missing_ids_are_shuffled_together(tmp_path, rows):
    for number, column in enumerate(rows):
        samples = pa.table({"user": pa.array(column, pa.int64()), "label": [1.0] * len(column)})
        pq.write_table(samples, tmp_path / f"{number}.parquet")
    columns = Columns(["user"], [], ["label"])
    (batch,) = data.parquet(f"{tmp_path}/*.parquet", columns=columns).shuffle(8).batch(8)
    expected = [[] if user is None else [user] for column in rows for user in column]
    assert sorted(batch.features["user"].to_lists()) == sorted(expected)
