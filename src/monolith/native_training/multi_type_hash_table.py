"""Import path of the reference system; see `monolith.embedding.merged_table`."""

from monolith.embedding.merged_table import MergedMultiTypeHashTable as MergedMultiTypeHashTable
