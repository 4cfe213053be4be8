from monolith.checkpoint import Contents, write
from monolith.native_training import multi_hash_table_ops
from monolith.native_training.tables.multi_hash_table import MultiHashTable
from monolith.native_training.test_utils import generate_test_hash_table_config
from tests.suites.table_base import column, keys


def test_names_of_the_reference_system():
    assert multi_hash_table_ops.MultiHashTable is MultiHashTable


def test_configs_of_the_reference_system_make_tables():
    configs = {slot: generate_test_hash_table_config(1, learning_rate=2.0) for slot in "ab"}
    with multi_hash_table_ops.MultiHashTable(configs) as table:
        table.apply_gradients({"b": (keys(7), column(1))})
        assert table.lookup({"b": keys(7)})["b"].tolist() == [[-2.0]]


def test_the_rows_of_a_checkpoint_are_counted_by_table(tmp_path):
    configs = {slot: generate_test_hash_table_config(1) for slot in "ba"}
    with multi_hash_table_ops.MultiHashTable(configs) as table:
        table.assign({"b": (keys(7, 8, 7), column(1, 1, 1))})
        write(Contents(tables=list(table.tables.values())), tmp_path / "model")
    names, counts = multi_hash_table_ops.feature_stat(tmp_path / "model")
    assert (names, counts.tolist()) == (["a", "b"], [0, 2])
