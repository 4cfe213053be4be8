import pytest

from monolith.cluster import LocalServers
from monolith.native_training.tables import DistributedMultiTypeHashTable
from monolith.native_training.tables.merged_table import MergedMultiTypeHashTable
from monolith.native_training.test_utils import generate_test_hash_table_config
from tests.suites.table_base import column, floats, keys

TWO, ONE = (generate_test_hash_table_config(dim) for dim in (2, 1))


@pytest.fixture(params=[1, 2, 3])
def table(request):
    with LocalServers(request.param) as servers:
        yield MergedMultiTypeHashTable(
            {"slot1": TWO, "slot2": TWO, "bias": ONE},
            lambda configs: DistributedMultiTypeHashTable(configs, servers),
        )


def test_table_vector_19_of_the_reference_system(table):
    table.assign_add({"slot1": (keys(1), floats([2, 2])), "slot2": (keys(1), floats([4, 4]))})
    both = {"slot1": keys(1), "slot2": keys(1)}
    assert [rows.tolist() for rows in table.lookup(both).values()] == [[[6, 6]], [[6, 6]]]
    table.apply_gradients({slot: (ids, floats([1, 1])) for slot, ids in both.items()})
    assert [rows.tolist() for rows in table.lookup(both).values()] == [[[4, 4]], [[4, 4]]]


def test_slots_come_back_as_they_were_asked_for(table):
    table.assign({"slot2": (keys(2, 3), floats([2, 2], [3, 3])), "bias": (keys(2), column(9))})
    rows = table.lookup({"slot2": keys(3, 2), "bias": keys(2), "slot1": keys(2)})
    assert list(rows) == ["slot2", "bias", "slot1"]
    assert rows["slot2"].tolist() == [[3, 3], [2, 2]]
    assert (rows["bias"].tolist(), rows["slot1"].tolist()) == ([[9]], [[2, 2]])


def test_rates_are_those_of_the_table_that_slots_share(table):
    name = table.sub_tables.feature_to_sub_table_name["slot1"]
    table.apply_gradients({"slot1": (keys(1), floats([1, 1]))}, learning_rates={name: [3.0]})
    assert table.lookup({"slot1": keys(1)})["slot1"].tolist() == [[-3, -3]]


def test_unknown_slots_are_refused(table):
    text = r"\.assign\] expected slots of the table, got 'z'; it has bias, slot1, slot2"
    with pytest.raises(ValueError, match=text):
        table.assign({"z": (keys(1), column(1))})


@pytest.mark.parametrize("verb", ["assign", "assign_add", "apply_gradients"])
def test_the_rows_of_each_slot_fit_its_own_ids(table, verb):
    name = "grads" if verb == "apply_gradients" else "values"
    text = rf"Table\.{verb}\] expected {name} of shape \(2, 2\), got \(1, 2\) \(slot 'slot1'\)"
    swapped = {"slot1": (keys(1, 2), floats([1, 1])), "slot2": (keys(3), floats([2, 2], [3, 3]))}
    with pytest.raises(ValueError, match=text):
        getattr(table, verb)(swapped)
    assert table.lookup({"slot1": keys(1, 2, 3)})["slot1"].eq(0).all()


def test_ids_of_another_dtype_are_refused_by_slot(table):
    text = r"\.{}\] expected ids of dtype int64, got int32 \(slot 'slot2'\)"
    with pytest.raises(TypeError, match=text.format("lookup")):
        table.lookup({"slot1": keys(1), "slot2": keys(1).int()})
    with pytest.raises(TypeError, match=text.format("assign")):
        table.assign({"slot2": (keys(1).int(), floats([1, 1]))})
