"""Random samples for factorization machines."""

import numpy as np
import pytest

from benchmarks.python_records import tf_example
from monolith import data
from monolith.native_training.input import generate_ffm_example, slot_to_key

SIZES = [3, 7, 5]


@pytest.mark.req("NT-INPUT-T1")
def test_a_seed_gives_the_same_bytes_with_ids_in_the_ranges_of_their_slots():
    made = []
    for _ in range(2):
        np.random.seed(0)
        made.append([generate_ffm_example(SIZES, length=4) for _ in range(50)])
    assert made[0] == made[1]
    for record in made[0]:
        (row,) = tf_example(record)
        assert sorted(row) == ["feature_0", "feature_1", "feature_2", "label"]
        assert row["label"] == [0.0]
        for slot, size in enumerate(SIZES):
            ids = row[slot_to_key(slot)]
            assert 1 <= len(ids) <= 4
            assert all(7 * slot <= each < 7 * slot + size for each in ids)


@pytest.mark.req("NT-INPUT-T2")
def test_the_key_of_a_slot():
    assert slot_to_key(7) == "feature_7"


@pytest.mark.req("NT-INPUT-T3")
def test_binary_labels_on_request():
    np.random.seed(0)
    rows = [tf_example(generate_ffm_example(SIZES, label_high=2))[0] for _ in range(100)]
    assert {row["label"][0] for row in rows} == {0.0, 1.0}


@pytest.mark.req("NT-INPUT-T4")
def test_the_golden_bytes_decode():
    np.random.seed(0)
    record = generate_ffm_example([3, 5], 2)
    assert record.hex() == (
        "0a3b0a120a09666561747572655f3012051a030a01010a120a09666561747572655f3112051a030a01080a11"
        "0a056c6162656c120812060a0400000000"
    )
    columns = data.Columns(["feature_0", "feature_1"], labels=["label"])
    made = data.RecordParser("tf_example", columns)([record])
    (row,) = tf_example(record)
    assert {name: each.to_lists()[0] for name, each in made.features.items()} == {
        name: row[name] for name in ("feature_0", "feature_1")
    }
    assert made.label.tolist() == [0.0]
