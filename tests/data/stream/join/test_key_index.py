"""The newest position of each key."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monolith.data.stream.join.key_index import KeyIndex


@given(st.lists(st.lists(st.integers(-9, 9), max_size=9), max_size=12))
def test_the_newest_position_of_each_key_is_found(blocks):
    index, expected, count = KeyIndex(), {}, 0
    for keys in blocks:
        positions = np.arange(count, count + len(keys))
        index.add(np.array(keys, np.int64), positions)
        expected |= zip(keys, positions.tolist(), strict=True)
        count += len(keys)
        queries = np.arange(-10, 11)
        assert index.find(queries).tolist() == [expected.get(key, -1) for key in queries.tolist()]
