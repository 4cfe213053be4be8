"""Give `MultiHashTable`: several tables in one call."""

from monolith.native_training.tables.multi_hash_table import MultiHashTable as MultiHashTable
