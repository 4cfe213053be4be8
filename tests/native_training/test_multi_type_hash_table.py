from monolith.embedding.merged_table import MergedMultiTypeHashTable
from monolith.embedding.multi_hash_table import MultiHashTable, MultiTypeHashTable
from monolith.native_training import multi_type_hash_table


def test_names_of_the_reference_system():
    assert multi_type_hash_table.MergedMultiTypeHashTable is MergedMultiTypeHashTable
    assert multi_type_hash_table.MultiTypeHashTable is MultiTypeHashTable
    assert multi_type_hash_table.RawMultiTypeHashTable is MultiHashTable
