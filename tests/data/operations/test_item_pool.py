import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.data.operations.item_pool import ItemPool
from monolith.errors import DataLossError, NotFoundError
from tests.data.operations.blocks import block
from tests.data.operations.pool_oracle import Pool

SEEN = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12), st.booleans()), max_size=60)


def take_in(pool, channels, items, is_stored=None, features=None):
    stored = np.ones(len(items), np.bool_) if is_stored is None else np.array(is_stored)
    features = block(item=list(items)) if features is None else features
    return pool.take_in(np.array(channels), np.array(items), stored, features)


def draw(pool, moment, at, chances):
    where = np.full(len(chances), at)
    return pool.draw(moment.channel[where], moment.num_stored[where], np.array(chances))


def items_of(pool, drawn):
    return pool.features(drawn.rows).column("item").to_pylist()


@given(SEEN, st.integers(1, 8), st.integers(1, 8))
def test_what_it_holds_is_what_a_plain_pool_holds(seen, max_items, window):
    pool, plain = ItemPool(max_items), Pool(max_items, 0)
    for first in range(0, len(seen), min(window, max_items)):
        part = seen[first : first + min(window, max_items)]
        channels, items, stored = zip(*part, strict=True)
        moment = take_in(pool, channels, items, stored)
        for at, (channel, item, is_stored) in enumerate(part):
            if is_stored:
                plain.store(channel, item, item)
            size = len(plain.channels.get(channel, {}))
            assert pool.sizes(moment.num_stored)[at] == size
    assert list(pool.counts()) == plain.counts()
    assert len(pool) == len(plain.counts())


def test_the_oldest_item_goes_first_and_comes_back_as_the_newest():
    pool = ItemPool(2)
    take_in(pool, [3, 3], [7, 8])
    take_in(pool, [3, 3], [9, 7])
    assert list(pool.counts()) == [(3, 9, 1, 0), (3, 7, 1, 0)]


def test_an_item_that_is_seen_again_keeps_its_first_features():
    pool = ItemPool(9, 0)
    features = block(item=[7, 7], price=[1.0, 2.0])
    moment = take_in(pool, [3, 3], [7, 7], features=features)
    assert pool.features(draw(pool, moment, 1, [0.5]).rows)["price"].to_pylist() == [1.0]
    assert list(pool.counts()) == [(3, 7, 2, 1)]


def test_draws_are_uniform_with_time_and_frequency_factors():
    pool = ItemPool(9, 0)
    moment = take_in(pool, [3] * 4, [5, 6, 7, 8])
    drawn = draw(pool, moment, 3, [0.0, 0.25, 0.3, 0.999])
    assert items_of(pool, drawn) == [5, 6, 6, 8]
    assert drawn.time_factor.tolist() == [0.25, 0.5, 0.5, 1.0]
    assert drawn.freq_factor.tolist() == [1.0, 1.0, 0.5, 1.0]
    assert draw(pool, moment, 3, [0.25]).freq_factor.tolist() == [1 / 3]


def test_a_sample_draws_from_what_was_there_at_its_moment():
    pool = ItemPool(2, 0)
    moment = take_in(pool, [3, 3], [5, 6])
    moment = take_in(pool, [3, 3], [7, 8])
    assert items_of(pool, draw(pool, moment, 0, [0.0, 0.9])) == [6, 7]
    assert items_of(pool, draw(pool, moment, 1, [0.0, 0.9])) == [7, 8]


def test_a_pool_is_ready_above_its_start():
    pool = ItemPool(9, 2)
    moment = take_in(pool, [3, 3, 3], [5, 6, 7])
    assert pool.is_ready(moment.num_stored).tolist() == [False, False, True]


def test_a_channel_without_items_has_no_place():
    moment = take_in(ItemPool(), [3, 4], [5, 6], [True, False])
    assert (moment.channel.tolist(), moment.num_stored.tolist()) == ([0, -1], [1, 0])


def test_a_moment_knows_all_channels():
    pool = ItemPool()
    take_in(pool, [3], [5])
    moment = take_in(pool, [4, 3, 4], [5, 6, 6])
    assert moment.of_all_channels(np.array([0, 1, 2])).tolist() == [[1, 1], [2, 1], [2, 2]]


def test_features_of_old_and_new_items_come_in_the_order_of_the_draws():
    pool = ItemPool(50, 0)
    for item in range(10):
        moment = take_in(pool, [3], [item])
    chances = [0.95, 0.0, 0.55, 0.15, 0.0]
    assert items_of(pool, draw(pool, moment, 0, chances)) == [9, 0, 5, 1, 0]


def test_many_items_are_packed(monkeypatch):
    monkeypatch.setattr("monolith.data.operations.item_pool._MIN_SPARE", 4)
    pool, plain = ItemPool(6, 0), Pool(6, 0)
    for item in np.random.default_rng(0).integers(0, 40, 500).tolist():
        moment = take_in(pool, [3], [item])
        plain.store(3, item, item)
        drawn = draw(pool, moment, 0, [0.4])
        assert items_of(pool, drawn) == [plain.draw(3, 0.4)[0]]
    assert list(pool.counts()) == plain.counts()
    assert pool._num_rows < 20


@pytest.mark.parametrize("is_list", [False, True])
def test_a_saved_pool_goes_on_as_the_one_before(tmp_path, is_list):
    pool = ItemPool(4, 0)
    features = block(item=[[i] if is_list else i for i in range(3)], price=[0.5, 1.5, 2.5])
    take_in(pool, [3, 4, 3], [0, 1, 2], features=features)
    pool.save(tmp_path / "pool")
    other = ItemPool.load(tmp_path / "pool", 4, 0)
    for each in (pool, other):
        moment = take_in(each, [4, 3, 3, 3], [1, 9, 8, 7], features=features.take([0, 1, 2, 2]))
        drawn = draw(each, moment, 3, [0.0, 0.9, 0.0])
        found = each.features(drawn.rows).to_pydict(), drawn.freq_factor.tolist()
        assert found[0]["price"] == [2.5, 2.5, 2.5]
    assert list(pool.counts()) == list(other.counts())
    assert [path.name for path in tmp_path.iterdir()] == ["pool"]


def test_an_empty_pool_can_be_saved(tmp_path):
    ItemPool().save(tmp_path / "pool")
    assert len(ItemPool.load(tmp_path / "pool")) == 0


def test_a_loaded_pool_may_be_smaller(tmp_path):
    pool = ItemPool(9, 0)
    take_in(pool, [3] * 5, [5, 6, 7, 8, 9])
    pool.save(tmp_path / "pool")
    small = ItemPool.load(tmp_path / "pool", 2, 0)
    assert [item for _, item, _, _ in small.counts()] == [8, 9]
    take_in(small, [3, 3], [5, 9])
    assert [item for _, item, _, _ in small.counts()] == [9, 5]


def test_files_that_are_no_pools_are_refused(tmp_path):
    with pytest.raises(NotFoundError, match=r"\[ItemPool.load\] expected a pool at"):
        ItemPool.load(tmp_path / "none")
    (tmp_path / "text").write_text("text")
    with pytest.raises(DataLossError, match=r"text' is no pool"):
        ItemPool.load(tmp_path / "text")
    with pa.ipc.new_file(str(tmp_path / "other"), block(x=[1]).schema) as writer:
        writer.write_batch(block(x=[1]))
    with pytest.raises(DataLossError, match=r"expected columns \['__channel__', .* got \['x'\]"):
        ItemPool.load(tmp_path / "other")


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="expected max_items of at least 1, got 0"):
        ItemPool(0)
    with pytest.raises(ValueError, match="expected at most 2 samples, got 3"):
        take_in(ItemPool(2), [3, 3, 3], [1, 2, 3])
