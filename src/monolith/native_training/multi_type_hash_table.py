"""Give the tables of several slots with configs of their own, merged or not."""

from monolith.native_training.tables.merged_table import (
    MergedMultiTypeHashTable as MergedMultiTypeHashTable,
)
from monolith.native_training.tables.multi_hash_table import MultiHashTable as _MultiHashTable
from monolith.native_training.tables.multi_hash_table import (
    MultiTypeHashTable as MultiTypeHashTable,
)

RawMultiTypeHashTable = _MultiHashTable
