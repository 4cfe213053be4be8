from monolith.native_training import multi_type_hash_table
from monolith.native_training.tables.merged_table import MergedMultiTypeHashTable
from monolith.native_training.tables.multi_hash_table import MultiHashTable, MultiTypeHashTable


def test_names_of_the_reference_system():
    assert multi_type_hash_table.MergedMultiTypeHashTable is MergedMultiTypeHashTable
    assert multi_type_hash_table.MultiTypeHashTable is MultiTypeHashTable
    assert multi_type_hash_table.RawMultiTypeHashTable is MultiHashTable
