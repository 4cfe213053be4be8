from monolith.native_training import hash_table_ops
from monolith.native_training.tables import fused
from monolith.native_training.tables.hash_table import HashTable
from monolith.native_training.test_utils import generate_test_hash_table_config
from tests.suites.table_base import column, keys


def test_names_of_the_reference_system():
    assert hash_table_ops.HashTable is HashTable
    assert hash_table_ops.fused_lookup is fused.fused_lookup
    assert hash_table_ops.fused_apply_gradient is fused.fused_apply_gradients


def test_a_config_of_the_reference_system_makes_a_table():
    table = hash_table_ops.HashTable("user", generate_test_hash_table_config(1))
    assert table.apply_gradients(keys(7), column(2), global_step=0).size() == 1
    assert table.lookup(keys(7, 8)).tolist() == [[-2.0], [0.0]]
