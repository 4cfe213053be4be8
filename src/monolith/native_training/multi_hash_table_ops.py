"""Import path of the reference system; see `monolith.native_training.tables.multi_hash_table`."""

from monolith.native_training.tables.multi_hash_table import MultiHashTable as MultiHashTable
