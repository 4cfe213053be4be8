"""Import path of the reference system; see `monolith.native_training.tables.multi_hash_table`."""

from monolith.native_training.tables.merged_table import (
    MergedMultiTypeHashTable as MergedMultiTypeHashTable,
)
from monolith.native_training.tables.multi_hash_table import MultiHashTable as _MultiHashTable
from monolith.native_training.tables.multi_hash_table import (
    MultiTypeHashTable as MultiTypeHashTable,
)

RawMultiTypeHashTable = _MultiHashTable
